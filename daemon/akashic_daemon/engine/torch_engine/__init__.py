"""The torch engine: Llama-family models on paged, position-free KV. Importing it imports torch."""

from akashic_daemon.engine.torch_engine.engine import TorchEngine
from akashic_daemon.engine.torch_engine.options import TorchOptions

__all__ = ["TorchEngine", "TorchOptions"]
