"""Where the kernels' tests run: on the GPU if there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    # Read by triton when a kernel is decorated, so it must be set before any is imported.
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        from triton_interpreter import repair

        repair()


@pytest.fixture(scope="session")
def device() -> str:
    """The device whose Triton backend is under test."""
    return "cuda" if torch.cuda.is_available() else "cpu"
