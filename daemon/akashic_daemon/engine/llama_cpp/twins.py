"""Twins: on sliding-window models, a hidden sequence holds what each sequence holds.

llama.cpp gives a cell that lies outside its sequence's window away, `swa_full` or not, if only one sequence holds it. But
another may come to share that cell, and would then attend to what isn't there any more (invariants 2 and 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import llama_cpp

from akashic_daemon.engine.llama_cpp.cells import SCRATCH_SEQUENCES

_MOST_NATIVE_SEQUENCES = 256
"""A higher id aborts the process."""


@dataclass(frozen=True, slots=True)
class Twins:
    """`sequences` for the caller, then the scratch ones, then the twins, `offset` higher; 0 for a model without."""

    sequences: int
    offset: int

    @classmethod
    def for_model(cls, model: Any, sequences: int) -> Twins:
        """Return what a model needs; with twins fewer sequences may be had than asked for."""
        if llama_cpp.llama_model_n_swa(model) <= 0:
            return cls(sequences, 0)
        sequences = min(sequences, (_MOST_NATIVE_SEQUENCES - SCRATCH_SEQUENCES) // 2)
        return cls(sequences, sequences + SCRATCH_SEQUENCES)

    @property
    def native_sequences(self) -> int:
        """llama.cpp's number of sequences; its batch may not be smaller, or it aborts."""
        return SCRATCH_SEQUENCES + self.sequences * (2 if self.offset else 1)

    @property
    def twinned(self) -> int:
        """How many sequences, the first ones, have a twin."""
        return self.sequences if self.offset else 0

    def ids(self, sequence: int) -> tuple[int, ...]:
        """Return a sequence's id and its twin's."""
        return (sequence, sequence + self.offset) if sequence < self.twinned else (sequence,)

    def follow(self, memory: Any, sequence: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Let the twin hold what `sequence` holds at these positions."""
        if sequence < self.twinned:
            for start, end in ranges:
                llama_cpp.llama_memory_seq_cp(memory, sequence, sequence + self.offset, start, end)
