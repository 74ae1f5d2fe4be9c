"""Ragged prefill: many segments, each with its own visible views and positions, in one launch (MATH: README.md)."""

from __future__ import annotations

from akashic_kernels.segment_prefill.api import plan_segments, segment_prefill
from akashic_kernels.segment_prefill.plan import SEGMENT_COLUMNS, SegmentPlan

__all__ = ["SEGMENT_COLUMNS", "SegmentPlan", "plan_segments", "segment_prefill"]
