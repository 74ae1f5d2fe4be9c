"""Appending to pages: what is written where, against float64 rotation; quantised keys; bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from akashic_kernels.block_summary import update_bounds
from akashic_kernels.errors import KernelInputError
from akashic_kernels.kv_quant.reference import quantise_rows
from akashic_kernels.rope import Rope, make_rope
from akashic_kernels.rope.reference import rotate
from akashic_kernels.rope_append import rope_append
from kernel_bounds import assert_within_bound, poisoned
from paged_kv import inverse_frequencies

PAGES, PAGE = 7, 16
# Page 2 from its start, the end of page 4, nothing, slots of page 0 out of order, page 5 whole.
SLOTS = [32, 33, 34, 79, -1, 7, 3, 5, *range(80, 96), -1]


@dataclass
class Append:
    """A batch of new tokens and poisoned pages."""

    head_dim: int = 32
    heads: int = 2
    dtype: torch.dtype = torch.bfloat16
    quantised: bool = False
    layout: Any = "half"
    rotary_dim: int | None = None
    attention_scale: float = 1.0
    slots: tuple[int, ...] = tuple(SLOTS)
    index_dtype: torch.dtype = torch.int64
    bounds_dtype: torch.dtype | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(11)
        shape = (len(self.slots), self.heads, self.head_dim)
        self.key = torch.randn(shape, generator=made).to(self.dtype).to(self.device)
        self.value = torch.randn(shape, generator=made).to(self.dtype).to(self.device)
        self.index = torch.tensor(self.slots, dtype=self.index_dtype, device=self.device)
        self.rope: Rope = make_rope(
            inverse_frequencies(self.rotary_dim or self.head_dim),
            layout=self.layout,
            attention_scale=self.attention_scale,
            device=self.device,
        )

    def pools(self) -> dict[str, Any]:
        """Poisoned pages, with scales if quantised and bounds if asked for."""
        pool = (PAGES, self.heads, PAGE, self.head_dim)
        kind = torch.int8 if self.quantised else self.dtype
        made: dict[str, Any] = {
            name: poisoned(*pool, dtype=kind, device=self.device) for name in ("k_pages", "v_pages")
        }
        for name in ("k_scale", "v_scale"):
            scale = poisoned(*pool[:3], dtype=torch.float32, device=self.device)
            made[name] = scale if self.quantised else None
        made["bounds"] = None
        if self.bounds_dtype is not None:
            made["bounds"] = poisoned(PAGES, self.heads, 2, self.head_dim, dtype=self.bounds_dtype, device=self.device)
            made["bounds"][[0, 4]] = 0.125
        return made

    def run(self, backend: Any) -> dict[str, Any]:
        """Append into poisoned pools and give them."""
        pools = self.pools()
        rope_append(self.key, self.value, self.index, self.rope, **pools, backend=backend)
        return pools

    def written(self) -> tuple[Tensor, Tensor]:
        """Which tokens are written, and where: page * PAGE + slot."""
        slots = torch.tensor(self.slots)
        return slots >= 0, slots[slots >= 0]

    def turned(self, compute: torch.dtype) -> Tensor:
        """The written keys turned by their slot."""
        which, place = self.written()
        rope = make_rope(self.rope.inv_freq.cpu(), layout=self.layout, attention_scale=self.attention_scale)
        return rotate(self.key.cpu()[which], (place % PAGE)[:, None], rope, compute)


def _rows(pages: Tensor, place: Tensor) -> Tensor:
    return pages.cpu()[place // PAGE, :, place % PAGE]


def _check_untouched(pages: Tensor, place: Tensor) -> None:
    other = torch.ones(PAGES * PAGE, dtype=torch.bool)
    other[place] = False
    rest = _rows(pages, other.nonzero().squeeze(1))
    poison = poisoned(*rest.shape, dtype=rest.dtype, device="cpu")
    assert torch.equal(torch.nan_to_num(rest, nan=-99.0), torch.nan_to_num(poison, nan=-99.0))


def _check(case: Append, backend: Any = "triton") -> None:
    pools = case.run(backend)
    which, place = case.written()
    truth = case.turned(torch.float64)
    assert_within_bound(_rows(pools["k_pages"], place), case.turned(torch.float32).to(case.dtype), truth)
    assert torch.equal(_rows(pools["v_pages"], place), case.value.cpu()[which])
    for name in ("k_pages", "v_pages"):
        _check_untouched(pools[name], place)


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_keys_are_turned_by_their_slot_and_all_else_stays(dtype: torch.dtype, backend: Any, device: str) -> None:
    _check(Append(dtype=dtype, device=device), backend)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (64, 32), (80, 80), (96, 32), (128, 128), (256, 256)])
def test_head_sizes_and_pairings_and_parts_of_a_head(layout: Any, head_dim: int, rotary_dim: int, device: str) -> None:
    _check(Append(head_dim=head_dim, rotary_dim=rotary_dim, layout=layout, attention_scale=1.3, heads=1, device=device))


@pytest.mark.parametrize("slots", [(17,), (-1,), (16, 17), tuple(range(15, 33)), tuple(range(112))])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_any_number_of_tokens(slots: tuple[int, ...], index_dtype: torch.dtype, device: str) -> None:
    if slots == (-1,):
        pools = Append(slots=slots, index_dtype=index_dtype, device=device).run("triton")
        _check_untouched(pools["k_pages"], torch.empty(0, dtype=torch.int64))
        return
    _check(Append(slots=slots, index_dtype=index_dtype, device=device))


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_int8_pages_hold_the_key_quantised_once(dtype: torch.dtype, backend: Any, device: str) -> None:
    case = Append(dtype=dtype, quantised=True, head_dim=64, device=device)
    pools = case.run(backend)
    which, place = case.written()
    for name, exact in (("k", case.turned(torch.float64)), ("v", case.value.cpu()[which].double())):
        scale = _rows(pools[f"{name}_scale"], place)
        held = _rows(pools[f"{name}_pages"], place).double() * scale.double()[..., None]
        stored, same_scale = quantise_rows(exact.float())
        assert_within_bound(scale, same_scale, exact.abs().amax(-1) / 127)
        assert_within_bound(held.float(), stored.float() * same_scale[..., None], exact)


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize(
    ("quantised", "bounds_dtype"), [(False, torch.bfloat16), (True, torch.bfloat16), (True, torch.float32)]
)
def test_bounds_are_those_that_block_summary_takes_from_the_pages(
    quantised: bool, bounds_dtype: torch.dtype, backend: Any, device: str
) -> None:
    case = Append(quantised=quantised, bounds_dtype=bounds_dtype, slots=(32, 33, 34, 79, -1, 3, 4, 5), device=device)
    pools = case.run(backend)
    bounds = case.pools()["bounds"]
    runs = torch.tensor([[2, 0, 3], [4, 15, 1], [0, 3, 3]], dtype=torch.int32, device=device)
    update_bounds(bounds, pools["k_pages"], runs, k_scale=pools["k_scale"], backend="reference")
    assert torch.equal(torch.nan_to_num(pools["bounds"], nan=-99.0), torch.nan_to_num(bounds, nan=-99.0))


def test_a_token_alone_is_bit_for_bit_the_token_in_a_batch(device: str) -> None:
    together = Append(device=device)
    pools = together.run("triton")
    for row, slot in enumerate(SLOTS):
        if slot < 0:
            continue
        alone = together.pools()
        some = slice(row, row + 1)
        rope_append(
            together.key[some], together.value[some], together.index[some], together.rope, **alone, backend="triton"
        )
        place = torch.tensor([slot])
        assert torch.equal(_rows(alone["k_pages"], place), _rows(pools["k_pages"], place))


def test_keys_inside_wider_rows_are_read_where_they_lie(device: str) -> None:
    case = Append(device=device)
    dense = case.run("triton")
    wide = poisoned(len(SLOTS), 7, case.head_dim, dtype=case.dtype, device=device)
    wide[:, 1:3], wide[:, 4:6] = case.key, case.value
    case.key, case.value = wide[:, 1:3], wide[:, 4:6]
    again = case.run("triton")
    for name in ("k_pages", "v_pages"):
        assert torch.equal(torch.nan_to_num(again[name], nan=-99.0), torch.nan_to_num(dense[name], nan=-99.0))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"key": torch.zeros(3, 2, 16)}, "key must have the shape"),
        ({"value": torch.zeros(4, 2, 32, dtype=torch.float16)}, "value is torch.float16"),
        ({"key": torch.zeros(2, 4, 32).transpose(0, 1)}, "dense in a token's heads"),
        ({"slots": torch.zeros(4)}, "slots must be"),
        ({"k_scale": torch.zeros(7, 2, 16)}, "k_scale"),
        ({"bounds": torch.zeros(7, 2, 32)}, "bounds"),
        ({"bounds": torch.zeros(7, 2, 2, 32, dtype=torch.float16)}, "bounds of torch.float16 can't hold"),
        ({"rope": make_rope(inverse_frequencies(64))}, "rotary_dim"),
    ],
)
def test_wrong_tensors_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    arguments: dict[str, Any] = {
        "key": torch.zeros(4, 2, 32),
        "value": torch.zeros(4, 2, 32),
        "slots": torch.arange(4),
        "rope": make_rope(inverse_frequencies(32)),
        "k_pages": torch.zeros(7, 2, 16, 32),
        "v_pages": torch.zeros(7, 2, 16, 32),
    }
    with pytest.raises(KernelInputError, match=word):
        rope_append(**(arguments | change))
