"""What decode attention refuses, and that each refusal names kernel and argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from akashic_kernels.backend import choose
from akashic_kernels.errors import KernelError, KernelInputError, KernelUnavailable
from akashic_kernels.paged_decode import make_workspace, paged_decode, paged_decode_selected
from akashic_kernels.rope import make_rope
from paged_kv import PagedKv, inverse_frequencies


def _arguments() -> dict[str, Any]:
    kv = PagedKv([[(0, 0, 16, 0)]], [16])
    names = ("query", "k_pages", "v_pages", "views", "view_start", "query_position", "rope")
    return {name: getattr(kv, name) for name in names}


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("query", lambda x: x.float(), "must agree"),
        ("query", lambda x: x[:, :3], "3 query heads"),
        ("query", lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), "last dimension"),
        ("query", lambda x: x.double(), "float64"),
        ("k_pages", lambda x: x[:, :, ::2], "contiguous"),
        ("k_pages", lambda x: x[:, :, :12].contiguous(), "12 tokens"),
        ("k_pages", lambda x: x.to(torch.int8), "v_pages"),
        ("v_pages", lambda x: x[:, :1], "v_pages must have the shape"),
        ("views", lambda x: x.long(), "views must be torch.int32"),
        ("views", lambda x: x[:, :3], "views must have the shape"),
        ("view_start", lambda x: x[:1], "view_start must have the shape"),
        ("query_position", lambda x: x.float(), "query_position must be"),
        ("rope", lambda _: make_rope(inverse_frequencies(64)), "rotary_dim 64"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(name: str, change: Any, word: str) -> None:
    arguments = _arguments()
    arguments[name] = change(arguments[name])
    with pytest.raises(KernelInputError, match=f"paged_decode: .*{word}"):
        paged_decode(**arguments)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"softmax_scale": float("nan")}, "softmax_scale"),
        ({"k_scale": torch.ones(1, 2, 16)}, "k_scale belongs to int8"),
        ({"out": torch.empty(1, 4, 32)}, "out must be"),
        ({"lse": torch.empty(1, 3)}, "lse must have the shape"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
    ],
)
def test_wrong_options_are_refused_by_name(more: dict[str, Any], word: str) -> None:
    with pytest.raises(KernelError, match=f"paged_decode: .*{word}"):
        paged_decode(**_arguments(), **more)


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("selected", lambda x: x.long(), "selected must be torch.int32"),
        ("selected", lambda x: x.to("meta"), "selected must be on cpu"),
        ("selected_count", lambda x: x[:, :1].contiguous(), "selected_count must have the shape"),
        ("query_position", lambda x: x.long(), "query_position must be torch.int32"),
        ("query_position", lambda x: x[:0], "query_position must have the shape"),
    ],
)
def test_a_wrong_list_of_views_is_refused_by_name(name: str, change: Any, word: str) -> None:
    arguments = {key: part for key, part in _arguments().items() if key not in ("views", "view_start")}
    arguments |= {
        "selected": torch.zeros(1, 2, 3, 4, dtype=torch.int32),
        "selected_count": torch.zeros(1, 2, dtype=torch.int32),
    }
    paged_decode_selected(**arguments)
    arguments[name] = change(arguments[name])
    with pytest.raises(KernelInputError, match=f"paged_decode: .*{word}"):
        paged_decode_selected(**arguments)


def test_a_workspace_for_other_shapes_is_refused(device: str) -> None:
    kv = PagedKv([[(0, 0, 16, 0)]], [16], device=device)
    arguments = (kv.query, kv.k_pages, kv.v_pages, kv.views, kv.view_start, kv.query_position, kv.rope)
    for workspace in (make_workspace(2, 4, 2, 32, device, splits=2), make_workspace(1, 4, 2, 32, device, splits=129)):
        with pytest.raises(KernelInputError, match=r"paged_decode: .*(workspace|splits)"):
            paged_decode(*arguments, workspace=workspace, backend="triton")


def test_neither_a_strange_device_nor_a_missing_interpreter_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelUnavailable, match=r"paged_decode: .*not on meta"):
        choose("paged_decode", torch.empty(1, device="meta"), None)
    monkeypatch.setattr("akashic_kernels.backend.interpreted", lambda: False)
    with pytest.raises(KernelUnavailable, match=r"paged_decode: .*TRITON_INTERPRET"):
        choose("paged_decode", torch.empty(1), "triton")
    assert choose("paged_decode", torch.empty(1), None) == "reference"
