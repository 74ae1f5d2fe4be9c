"""What a model says of the next tokens after its KV was stored and brought back, against KV that was stored as computed.

Before each answer all KV before it leaves the engine in blocks and comes back, also what did so before earlier answers: a
session that is parked after every turn. Each way has an engine of its own and computes the same tokens in the same batches
and cells, so that what differs is the storage alone: where cells lie changes the order of sums, and with quantized weights
that alone moves a token's distribution by two thousandths of a nat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from akashic_daemon.engine.base import AS_COMPUTED, BatchItem, FloatArray, PackedRun, ReadableEngine
from akashic_daemon.errors import BadRequest
from akashic_daemon.fidelity.measure import divergence, log_softmax, surprise
from akashic_daemon.fidelity.reader import PIECE_TOKENS
from akashic_daemon.fidelity.turns import Run, Turn, TurnCutter
from akashic_daemon.types import SequenceId

BLOCK_TOKENS = 128


class StoredReader:
    """Computes in one sequence, whose KV it has stored and brought back whenever it reads on after new tokens."""

    def __init__(self, engine: ReadableEngine, sequence: SequenceId, storage: str) -> None:
        self._engine = engine
        self._sequence = sequence
        self._storage = storage
        self._held: list[int] = []
        self.stored_bytes = 0
        """What the last storing took."""

    def read(self, tokens: Sequence[int], first: int, end: int) -> FloatArray:
        """Return the logits after each of the tokens first..end-1, at most PIECE_TOKENS: [end - first, vocabulary]."""
        wanted = list(tokens[:end])
        kept = _common(self._held, wanted[:first])
        self.forget(kept)
        if kept < first:
            for start in range(kept, first, PIECE_TOKENS):
                self._decode(wanted[start : min(first, start + PIECE_TOKENS)], start, wanted=False)
            self._store(first)
        self._decode(wanted[first:], first, wanted=True)
        self._held = wanted
        return self._engine.logits(0)

    def forget(self, kept: int = 0) -> None:
        """Let go of everything but the first `kept` tokens."""
        self._engine.release(self._sequence, kept)
        del self._held[kept:]

    def _decode(self, tokens: Sequence[int], start: int, *, wanted: bool) -> None:
        self._engine.decode([BatchItem(self._sequence, tokens, start, logits=wanted, all_logits=wanted)])

    def _store(self, end: int) -> None:
        runs = []
        for start in range(0, end, BLOCK_TOKENS):
            stop = min(end, start + BLOCK_TOKENS)
            data = memoryview(bytearray(self._engine.export_bytes(stop - start, self._storage)))
            used = self._engine.export_cells(self._sequence, start, stop, data, self._storage)
            runs.append(PackedRun(data[:used], start, stop))
        self._engine.release(self._sequence)
        self._engine.import_runs(runs, self._sequence)
        self.stored_bytes = sum(len(run.data) for run in runs)


@dataclass(slots=True)
class _Sums:
    """Of one run; nll and kl in nats. `bytes_before` and `bytes_after` are of the last turn."""

    turns: int = 0
    tokens: int = 0
    nll_as_computed: float = 0.0
    nll: float = 0.0
    kl: float = 0.0
    top_changed: int = 0
    bytes_as_computed: int = 0
    bytes_stored: int = 0

    def figures(self, name: str, left_out: int) -> dict[str, Any]:
        return {
            "run": name,
            "turns": self.turns,
            "turns_left_out": left_out,
            "scored_tokens": self.tokens,
            "nll_as_computed": self.nll_as_computed / self.tokens,
            "nll": self.nll / self.tokens,
            "kl": self.kl / self.tokens,
            "top_changed": self.top_changed / self.tokens,
            "bytes_as_computed": self.bytes_as_computed,
            "bytes": self.bytes_stored,
        }


@dataclass(slots=True)
class StorageScorer:
    """Scores a storage with two engines of one model. Raises Unsupported when KV can't be stored so."""

    engine: ReadableEngine
    other: ReadableEngine
    storage: str
    tell: Callable[[dict[str, Any]], None]
    _readers: tuple[StoredReader, StoredReader] = field(init=False)

    def __post_init__(self) -> None:
        self.engine.export_bytes(1, self.storage)
        self._readers = (
            StoredReader(self.engine, SequenceId(0), AS_COMPUTED),
            StoredReader(self.other, SequenceId(0), self.storage),
        )

    def score(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return the figures of all runs. Raises BadRequest when no turn of any run fits."""
        cutter = TurnCutter(self.engine)
        able = self.engine.capabilities
        longest = min(self.engine.model.window_tokens, able.kv_cells)
        reports = []
        for run in runs:
            turns = list(cutter.turns(run))
            fitting = [turn for turn in turns if len(turn.layout.tokens) <= longest]
            if fitting:
                reports.append(self._run(run, fitting, len(turns) - len(fitting)))
                self.tell({"run": reports[-1]})
        if not reports:
            raise BadRequest(
                f"measuring {self.storage} with {len(runs)} runs: no answer of them fits {longest:,} tokens",
                hint="name shorter runs, or raise cache.kv_tokens",
            )
        keys = ("nll_as_computed", "nll", "kl", "top_changed")
        means = {key: sum(report[key] for report in reports) / len(reports) for key in keys}
        return {
            "model": self.engine.model.name,
            "storage": self.storage,
            "longest_tokens": longest,
            "summary": {**means, "nll_over_as_computed": means["nll"] - means["nll_as_computed"]},
            "runs": reports,
        }

    def _run(self, run: Run, turns: Sequence[Turn], left_out: int) -> dict[str, Any]:
        sums = _Sums()
        for turn in turns:
            self._turn(turn, sums)
            self.tell({"turn": run.name})
        for reader in self._readers:
            reader.forget()
        return sums.figures(run.name, left_out)

    def _turn(self, turn: Turn, sums: _Sums) -> None:
        tokens = turn.layout.tokens.tolist()
        answer = len(tokens) - turn.after - turn.said
        for start in range(answer, answer + turn.said, PIECE_TOKENS):
            end = min(start + PIECE_TOKENS, answer + turn.said)
            expected, found = (log_softmax(reader.read(tokens, start - 1, end - 1)) for reader in self._readers)
            sums.nll_as_computed += surprise(expected, tokens[start:end])
            sums.nll += surprise(found, tokens[start:end])
            sums.kl += divergence(expected, found)
            sums.top_changed += int((expected.argmax(axis=1) != found.argmax(axis=1)).sum())
            sums.tokens += end - start
        sums.turns += 1
        sums.bytes_as_computed, sums.bytes_stored = (reader.stored_bytes for reader in self._readers)


def _common(held: Sequence[int], wanted: Sequence[int]) -> int:
    count = min(len(held), len(wanted))
    differing = np.flatnonzero(np.array(held[:count]) != np.array(wanted[:count]))
    return int(differing[0]) if len(differing) else count
