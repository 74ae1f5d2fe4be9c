"""The llama.cpp engine. The only place that knows llama_cpp; everything goes through its low-level API."""

from akashic_daemon.engine.llama_cpp.engine import LlamaCppEngine, LlamaCppOptions
from akashic_daemon.engine.llama_cpp.model_file import EMBEDDED_MODEL_NAME, embedded_model_path

__all__ = ["EMBEDDED_MODEL_NAME", "LlamaCppEngine", "LlamaCppOptions", "embedded_model_path"]
