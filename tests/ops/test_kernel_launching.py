"""A kernel that can't be compiled or placed is named in an error of the ops' own, whichever it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

import akashic_kernels
from akashic_kernels.errors import KernelUnavailable
from akashic_kernels.kv_gather import triton as kv_gather_triton
from akashic_kernels.kv_gather.api import kv_gather, kv_scatter
from akashic_kernels.kv_quant import dequantise_pages, quantise_pages
from akashic_kernels.kv_quant import triton as kv_quant_triton

OPS = [
    module.name
    for module in pkgutil.iter_modules(akashic_kernels.__path__, "akashic_kernels.")
    if module.ispkg and importlib.util.find_spec(f"{module.name}.api") is not None
]


class _TooLarge:
    """A kernel that asks for more than the GPU has."""

    def __getitem__(self, grid: Any) -> Any:
        def launch(*_: Any, **__: Any) -> None:
            raise OutOfResources(300_000, 232_448, "shared memory")

        return launch


@pytest.mark.parametrize("op", OPS)
def test_every_launch_names_its_kernel(op: str) -> None:
    tree = ast.parse(inspect.getsource(importlib.import_module(f"{op}.api")))
    named = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.With) and ast.unparse(outer.items[0].context_expr).startswith("launching(")
        for inner in ast.walk(outer)
    }
    launches = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)]
    assert bool(launches) == (importlib.util.find_spec(f"{op}.triton") is not None and op != "akashic_kernels.rope")
    assert [node.lineno for node in launches if id(node) not in named] == []


def test_pieces_and_pages_that_cant_be_moved_name_the_op(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("quantise_kernel", "dequantise_kernel"):
        monkeypatch.setattr(kv_quant_triton, name, _TooLarge())
    monkeypatch.setattr(kv_gather_triton, "copy_pieces_kernel", _TooLarge())
    host = torch.zeros(4, 16, pin_memory=device == "cuda")
    pages, index = torch.zeros(4, 16, device=device), torch.arange(4, device=device)
    wide = torch.zeros(2, 1, 16, 16, device=device)
    with pytest.raises(KernelUnavailable, match=r"kv_gather: .*shared memory"):
        kv_gather(host, index, pages, index, backend="triton")
    with pytest.raises(KernelUnavailable, match=r"kv_scatter: .*shared memory"):
        kv_scatter(pages, index, host, index, backend="triton")
    with pytest.raises(KernelUnavailable, match=r"kv_quant: .*shared memory"):
        quantise_pages(wide, backend="triton")
    with pytest.raises(KernelUnavailable, match=r"kv_quant: .*shared memory"):
        dequantise_pages(wide.to(torch.int8), wide[..., 0].contiguous(), backend="triton")
