"""Importing an op costs neither torch nor triton nor numpy, in an interpreter where they would fail."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import akashic_kernels

OPS = [module.name for module in pkgutil.iter_modules(akashic_kernels.__path__)]


@pytest.mark.parametrize("op", ["", *(f".{name}" for name in OPS)])
def test_an_op_is_imported_without_torch_triton_and_numpy(op: str) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'numpy'))); "
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}import akashic_kernels{op}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
