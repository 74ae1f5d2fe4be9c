"""Ops can be imported where neither torch nor triton is."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import akashic_kernels

OPS = sorted(module.name for module in pkgutil.iter_modules(akashic_kernels.__path__) if module.ispkg)


@pytest.mark.parametrize("op", OPS)
def test_an_op_imports_neither_torch_nor_triton(op: str) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'numpy')))"
    code = f"{blocked}; import akashic_kernels.{op} as op; assert op.__doc__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
