"""Decode attention against SDPA on contiguous KV and against copy speed: dense, a batch, and sparse with its choice.

Run with `PYTHONPATH=kernels python kernels/bench/decode_attention.py [--tune] [--dirty]`; needs torch, triton, a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from typing import Any

import measure
import torch
import torch.nn.functional as F
from measure import DEVICE, Timer, relative_error, report

from akashic_kernels.block_select import api as select_api
from akashic_kernels.block_select import block_select, make_selection
from akashic_kernels.block_select.reference import choose_row, score_row
from akashic_kernels.block_summary import make_bounds, update_bounds
from akashic_kernels.paged_decode import api as decode_api
from akashic_kernels.paged_decode import make_workspace, paged_decode, paged_decode_selected, selected_tiles
from akashic_kernels.paged_decode.reference import attend
from akashic_kernels.rope import make_rope
from akashic_kernels.rope.reference import rotate

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 128
GROUP = Q_HEADS // KV_HEADS
TOP_K, SINK, RECENT = 32, 1, 1
DENSE_SHAPES = [
    decode_api.LaunchShape(*shape)
    for shape in ((64, 2, 4), (64, 3, 4), (64, 4, 4), (64, 6, 4), (128, 2, 4), (128, 3, 4), (64, 3, 8), (128, 3, 8))
]
SPARSE_SHAPES = [
    decode_api.LaunchShape(*shape)
    for shape in ((64, 2, 4), (64, 3, 4), (64, 4, 4), (128, 2, 4), (128, 3, 4), (64, 2, 8), (128, 2, 8))
]


class Case:
    """Random KV of `batch` rows of `length` tokens: pages in random order, and the same tokens contiguous."""

    def __init__(self, batch: int, length: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.batch, self.length, self.dtype = batch, length, dtype
        self.per_row = length // PAGE
        pages = batch * self.per_row
        inv_freq = 500000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
        self.rope = make_rope(inv_freq, device=DEVICE)
        order = torch.randperm(pages, device=DEVICE)
        index = torch.arange(pages, device=DEVICE)
        columns = (order, torch.zeros_like(index), torch.full_like(index, PAGE), index % self.per_row * PAGE)
        self.views = torch.stack(columns, 1).to(torch.int32).contiguous()
        self.view_start = torch.arange(0, pages + 1, self.per_row, dtype=torch.int32, device=DEVICE)
        self.position = torch.full((batch,), length, dtype=torch.int32, device=DEVICE)
        self.query = torch.randn(batch, Q_HEADS, HEAD_DIM, device=DEVICE, dtype=dtype)
        shape = (pages, KV_HEADS, PAGE, HEAD_DIM)
        raw = torch.randn(shape, device=DEVICE, dtype=dtype)
        self.v_pages = torch.randn(shape, device=DEVICE, dtype=dtype)
        self.k_pages = torch.empty_like(raw)
        slots = torch.arange(PAGE, device=DEVICE)
        for first in range(0, pages, 256):
            part = slice(first, first + 256)
            self.k_pages[part] = rotate(raw[part], slots, self.rope, torch.float32).to(dtype)
        self.order, self._raw = order, raw
        self.cache_bytes = 2 * raw.numel() * raw.element_size()

    def contiguous(self, pages: torch.Tensor) -> torch.Tensor:
        """Give pages as [batch, kv_heads, length, head_dim]."""
        of_rows = pages[self.order].view(self.batch, self.per_row, KV_HEADS, PAGE, HEAD_DIM)
        return of_rows.transpose(1, 2).reshape(self.batch, KV_HEADS, self.length, HEAD_DIM)

    def at_positions(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give query, keys and values as SDPA takes them, turned to absolute positions and rounded."""
        keys = self.contiguous(self._raw)
        positions = torch.arange(self.length, device=DEVICE)
        for first in range(0, self.length, 16384):
            part = slice(first, first + 16384)
            keys[:, :, part] = rotate(keys[:, :, part], positions[part], self.rope, torch.float32).to(self.dtype)
        query = rotate(self.query, self.position[:, None], self.rope, torch.float32).to(self.dtype)
        return query[:, :, None], keys, self.contiguous(self.v_pages)

    def forget_raw(self) -> None:
        """Let the unturned keys go."""
        self._raw = torch.empty(0)


def truth_of(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Give float64 attention of one row from float64 or rounded inputs [kv_heads, ..., d]."""
    out = []
    for head in range(KV_HEADS):
        scores = query[head * GROUP : (head + 1) * GROUP].double() @ keys[head].double().T / math.sqrt(HEAD_DIM)
        out.append(torch.softmax(scores, -1) @ values[head].double())
    return torch.cat(out)


def errors(case: Case, ours: torch.Tensor, sdpa: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Give both errors of row 0, each against float64 over the inputs that it was given, and over the same ones.

    "given": ours over the stored keys and the unturned query, SDPA over its turned and rounded ones.
    "shared": both over the unrounded keys and query at their positions, which neither was given.
    """
    query, keys, values = (part[0] for part in inputs)
    positions = torch.arange(case.length, device=DEVICE)
    turned = rotate(case.query[0], case.position[:1], case.rope, torch.float64)
    stored = case.contiguous(case.k_pages)[0]
    base = positions // PAGE * PAGE
    at_base = torch.stack([rotate(head, base, case.rope, torch.float64) for head in stored])
    raw = case.contiguous(case._raw)[0]
    exact = torch.stack([rotate(head, positions, case.rope, torch.float64) for head in raw])
    shared = truth_of(turned, exact, values)
    return {
        "ours_given": relative_error(ours[0], truth_of(turned, at_base, values)),
        "sdpa_given": relative_error(sdpa[0, :, 0], truth_of(query[:, 0], keys, values)),
        "ours_shared": relative_error(ours[0], shared),
        "sdpa_shared": relative_error(sdpa[0, :, 0], shared),
    }


def dense_work(case: Case, splits: int | None) -> tuple[Callable[[], object], torch.Tensor]:
    """Give a launch of the dense kernel and its output."""
    workspace = make_workspace(case.batch, Q_HEADS, KV_HEADS, HEAD_DIM, DEVICE, splits=splits)
    out = torch.full_like(case.query, math.nan)
    lse = torch.empty(case.batch, Q_HEADS, device=DEVICE)
    arguments = (case.query, case.k_pages, case.v_pages, case.views, case.view_start, case.position, case.rope)
    return lambda: paged_decode(*arguments, out=out, lse=lse, workspace=workspace), out


def with_shape(api: Any, shape: object, run: Callable[[], Any]) -> Any:
    """Run with a launch shape of choice in place of the api's own."""
    own = api.launch_shape
    api.launch_shape = lambda *_: shape
    try:
        return run()
    finally:
        api.launch_shape = own


def tune_dense(timer: Timer, case: Case) -> None:
    """Print the times of many shapes and splits."""
    results = []
    for shape in DENSE_SHAPES:
        for splits in (33, 49, 66) if case.batch == 1 else (1, 2, 4):
            try:
                time = with_shape(decode_api, shape, lambda s=splits: timer.microseconds(dense_work(case, s)[0], 12))
            except Exception as problem:  # noqa: BLE001 - a shape that doesn't fit is a result of tuning
                print("skipped", shape, splits, str(problem)[:80])
                continue
            results.append((round(time, 1), splits, *shape))
    results.sort()
    report("tune_dense", {"batch": case.batch, "length": case.length, "best": results[:14], "worst": results[-3:]})


def measure_dense(timer: Timer, case: Case, copy_rate: float) -> float:
    """Report the dense kernel against SDPA and copy speed, with errors; give SDPA's time."""
    inputs = case.at_positions()
    sdpa_out = F.scaled_dot_product_attention(*inputs, enable_gqa=True)
    sdpa = timer.spread(lambda: F.scaled_dot_product_attention(*inputs, enable_gqa=True))
    work, out = dense_work(case, None)
    ours = timer.spread(work)
    figures = {
        "batch": case.batch,
        "length": case.length,
        "ours_us": ours[1],
        "sdpa_us": sdpa[1],
        "ours_spread": ours,
        "sdpa_spread": sdpa,
        "ratio": ours[1] / sdpa[1],
        "terabytes_per_second": case.cache_bytes / ours[1] / 1e6,
        "of_copy": case.cache_bytes / ours[1] / 1e6 / copy_rate,
        **errors(case, out, sdpa_out, inputs),
    }
    report("dense", figures)
    return sdpa[1]


class Sparse:
    """A sparse step over a case: bounds, room for the choice, and its two launches."""

    def __init__(self, case: Case, splits: int | None = None) -> None:
        self.case = case
        pages = case.k_pages.shape[0]
        self.bounds = make_bounds(pages, KV_HEADS, HEAD_DIM, dtype=case.dtype, device=DEVICE)
        runs = torch.tensor([(page, 0, PAGE) for page in range(pages)], dtype=torch.int32, device=DEVICE)
        update_bounds(self.bounds, case.k_pages, runs)
        numbers = {"top_k": TOP_K, "sink": SINK, "recent": RECENT}
        self.selection = make_selection(case.batch, KV_HEADS, case.per_row, **numbers, device=DEVICE)
        self.out = torch.full_like(case.query, math.nan)
        self.lse = torch.empty(case.batch, Q_HEADS, device=DEVICE)
        self.split(splits)

    def split(self, splits: int | None) -> None:
        """Cut a head's list into `splits` parts, by default as the engine does."""
        tiles = selected_tiles(TOP_K + SINK + RECENT, PAGE, self.case.dtype)
        self.workspace = make_workspace(
            self.case.batch, Q_HEADS, KV_HEADS, HEAD_DIM, DEVICE, splits=splits, tiles=tiles
        )

    def choose(self) -> None:
        """Score and choose."""
        case = self.case
        arguments = (case.query, self.bounds, case.views, case.view_start, case.position, case.rope, self.selection)
        block_select(*arguments, top_k=TOP_K, sink=SINK, recent=RECENT)

    def attend(self, after_choice: bool = False) -> None:
        """Attend to the chosen views."""
        case, chosen = self.case, self.selection
        arguments = (case.query, case.k_pages, case.v_pages, chosen.views, chosen.count, case.position, case.rope)
        room = {"out": self.out, "lse": self.lse, "workspace": self.workspace}
        paged_decode_selected(*arguments, **room, after_choice=after_choice)

    def step(self) -> None:
        """Choose, then attend."""
        self.choose()
        self.attend(after_choice=True)

    def check(self) -> dict[str, float]:
        """Hold the lists to the reference's choice from the kernel's scores, and the rest to float64."""
        self.step()
        case, chosen = self.case, self.selection
        lists = choose_row(chosen.scores[0], case.views, TOP_K, SINK, RECENT)
        for head, index in enumerate(lists):
            assert torch.equal(chosen.index[0, head, : int(chosen.count[0, head])].long(), index), "another choice"
        scores = score_row(case.query[0], self.bounds, case.views, case.position[0], case.rope, compute=torch.float64)
        heads = [[chosen.views[0, head, : int(chosen.count[0, head])] for head in range(KV_HEADS)]]
        truth, _ = attend(
            case.query, case.k_pages, case.v_pages, heads, case.position, case.rope, 1 / math.sqrt(HEAD_DIM),
            compute=torch.float64,
        )  # fmt: skip
        return {
            "score_error": relative_error(chosen.scores[0], scores),
            "attention_error": relative_error(self.out, truth),
        }


def tune_sparse(timer: Timer, sparse: Sparse) -> None:
    """Print the times of many shapes of both launches."""
    results = []
    for block, warps in itertools.product((16, 32, 64, 128), (4, 8, 16)):
        time = with_shape(select_api, (block, warps), lambda: timer.microseconds(sparse.choose, 15))
        results.append((round(time, 1), block, warps))
    report("tune_choice", {"length": sparse.case.length, "all": sorted(results)})
    results = []
    for shape, splits in itertools.product(SPARSE_SHAPES, (9, 12, 17, 23, 32, 68)):
        sparse.split(splits)
        try:
            time = with_shape(decode_api, shape, lambda: timer.microseconds(sparse.attend, 12))
        except Exception as problem:  # noqa: BLE001 - a shape that doesn't fit is a result of tuning
            print("skipped", shape, splits, str(problem)[:80])
            continue
        results.append((round(time, 1), splits, *shape))
    report("tune_sparse", {"length": sparse.case.length, "best": sorted(results)[:12]})


def measure_sparse(timer: Timer, sparse: Sparse, sdpa_us: float) -> None:
    """Report choice and sparse attention, together and apart."""
    errors_of = sparse.check()
    total = timer.spread(sparse.step)
    figures = {
        "length": sparse.case.length,
        "total_us": total[1],
        "spread": total,
        "choice_us": timer.microseconds(sparse.choose),
        "attention_us": timer.microseconds(sparse.attend),
        "sdpa_us": sdpa_us,
        "times_faster": sdpa_us / total[1],
        **errors_of,
    }
    report("sparse", figures)


class Warmer(Timer):
    """Compiles what a timer would time, one part of it in each of several processes."""

    def __init__(self, part: int, parts: int) -> None:
        super().__init__()
        self._part, self._parts, self._seen = part, parts, 0

    def microseconds(self, work: Callable[[], object], repeats: int = 40) -> float:
        """Launch the work once if it is this process's."""
        self._seen += 1
        if self._seen % self._parts == self._part:
            work()
        return float(self._seen)


def warm(part: int, parts: int) -> None:
    """Fill Triton's cache with what `--tune` launches."""
    timer = Warmer(part, parts)
    for batch, length in ((16, 8192), (1, 131072), (1, 262144)):
        case = Case(batch, length)
        tune_dense(timer, case)
        if batch == 1:
            tune_sparse(timer, Sparse(case))


def main() -> None:
    """Measure all shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="first print the times of many launch shapes")
    parser.add_argument("--dirty", action="store_true", help="leave lines that were just written in the L2")
    parser.add_argument("--lengths", type=int, nargs="*", default=[32768, 131072, 262144])
    parser.add_argument("--warm", type=int, nargs=2, metavar=("PART", "PARTS"), help="only compile for --tune")
    options = parser.parse_args()
    if options.warm:
        warm(*options.warm)
        return
    torch.manual_seed(0)
    timer = Timer(dirty=options.dirty)
    copy_rate = measure.copy_terabytes_per_second(timer)
    empty = torch.zeros(1, device=DEVICE)
    floor = timer.microseconds(empty.zero_)
    report("machine", {**measure.machine(), "copy_terabytes_per_second": copy_rate, "one_small_launch_us": floor})
    for length in options.lengths:
        case = Case(1, length)
        if options.tune:
            tune_dense(timer, case)
        sdpa = measure_dense(timer, case, copy_rate)
        case.forget_raw()
        if length >= 65536:
            sparse = Sparse(case)
            if options.tune:
                tune_sparse(timer, sparse)
                sparse.split(None)
            measure_sparse(timer, sparse, sdpa)
        del case
        torch.cuda.empty_cache()
    case = Case(16, 8192)
    if options.tune:
        tune_dense(timer, case)
    measure_dense(timer, case, copy_rate)


if __name__ == "__main__":
    main()
