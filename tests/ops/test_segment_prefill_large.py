"""Pools past 2^31 elements: what is appended at their end is found there by a prefill."""

from __future__ import annotations

import pytest
import torch

from akashic_kernels.rope import make_rope
from akashic_kernels.rope_append import rope_append
from akashic_kernels.segment_prefill import plan_segments, segment_prefill
from akashic_kernels.segment_prefill.reference import segment_prefill_reference
from akashic_kernels.views import PageShape
from kernel_bounds import assert_within_bound, poisoned
from paged_kv import inverse_frequencies

SHAPE = PageShape(16384 + 3, 8, 128, 128)


@pytest.mark.gpu
def test_pages_past_two_to_the_31_elements_are_written_and_read() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rope = make_rope(inverse_frequencies(128), device="cuda")
    k_pages, v_pages = (torch.full(SHAPE, float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    assert k_pages.numel() > 2**31
    # Rows of the keys lie far apart, so that the batch passes 2^31 elements too.
    rows = torch.empty(2, 2**30 + 64, dtype=torch.bfloat16, device="cuda")[:, :1024].view(2, 8, 128)
    rows.normal_()
    near = torch.randn(201, 8, 128, dtype=torch.bfloat16, device="cuda")
    first = (SHAPE.pages - 2) * 128
    slots = torch.arange(first, first + 201, device="cuda")
    rope_append(near, near, slots, rope, k_pages, v_pages)
    rope_append(rows, rows, torch.tensor([5, 6], device="cuda"), rope, k_pages, v_pages)
    views = torch.tensor(
        [[0, 5, 2, -5], [SHAPE.pages - 2, 0, 128, 2], [SHAPE.pages - 1, 0, 73, 130]], dtype=torch.int32
    )
    segments = torch.tensor([[0, 40, 0, 3, 163]], dtype=torch.int32)
    query = torch.randn(40, 32, 128, dtype=torch.bfloat16, device="cuda")
    plan = plan_segments(segments, views, rope, SHAPE, query_heads=32, device="cuda")
    out = segment_prefill(query, k_pages, v_pages, plan, out=poisoned(*query.shape, dtype=query.dtype, device="cuda"))
    arguments = (query, k_pages, v_pages, segments, views, rope)
    truth = segment_prefill_reference(*arguments, softmax_scale=128**-0.5, compute=torch.float64)
    same = segment_prefill_reference(*arguments, softmax_scale=128**-0.5, compute=torch.bfloat16)
    assert_within_bound(out, same, truth)
