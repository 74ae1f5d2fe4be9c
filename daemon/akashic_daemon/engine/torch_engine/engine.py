"""The torch engine behind the `Engine` contract: position-free paged KV, one forward pass a step, any device.

`share`, `release`, `save` and `load` change lists of views only, so Repos, splices and shared prefixes move no KV.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from akashic_daemon.engine.base import (
    BatchItem,
    Capabilities,
    FloatArray,
    ModelInfo,
    PackedRun,
    Sampler,
    SamplingParams,
    SavedCells,
)
from akashic_daemon.engine.threads import LoadFollower
from akashic_daemon.engine.torch_engine.attention import Sparse
from akashic_daemon.engine.torch_engine.deferred import Deferred
from akashic_daemon.engine.torch_engine.exported import CellExporter
from akashic_daemon.engine.torch_engine.forward import Model
from akashic_daemon.engine.torch_engine.graphs import DecodeGraphs
from akashic_daemon.engine.torch_engine.kv import PagedCells, PagedKv
from akashic_daemon.engine.torch_engine.last_logits import Best, LastLogits
from akashic_daemon.engine.torch_engine.loading import Loaded, load
from akashic_daemon.engine.torch_engine.options import TorchOptions
from akashic_daemon.engine.torch_engine.sampler import TorchSampler
from akashic_daemon.engine.torch_engine.split import attention_over
from akashic_daemon.engine.torch_engine.step import Step, lay_out
from akashic_daemon.engine.vocabulary import Vocabulary
from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId


class TorchEngine:
    """A model computed by torch. Make, use and close it on one thread (tokenizing is safe anywhere).

    `loaded` is a model that isn't read from files, for measuring.
    """

    def __init__(self, options: TorchOptions, vocabulary: Vocabulary, loaded: Loaded | None = None) -> None:
        self._options = options
        self._vocabulary = vocabulary
        loaded = load(options, vocabulary) if loaded is None else loaded
        self.warnings = loaded.warnings
        self._info = loaded.info
        self._kv: PagedKv = loaded.kv
        self._model = Model(loaded.shape, loaded.weights)
        sparse = Sparse(options.sparse_blocks) if options.sparse_blocks else None
        self._attention = attention_over(loaded.kv.pool, loaded.shape, sparse)
        self._deferred = Deferred(loaded.kv, self.settle)
        self._exporter = CellExporter(loaded.kv)
        self._kv_cells = loaded.kv_cells
        self._threads = LoadFollower(options.cores, fixed=options.threads)
        self._threads_set = 0
        self._graphs: DecodeGraphs | None = None
        self._on_gpu = loaded.kv.pool.device.type == "cuda"
        if self._on_gpu:  # Triton launches where torch stands, and this thread has no other engine
            torch.cuda.set_device(loaded.kv.pool.device)
        if self._on_gpu and options.cuda_graphs:
            self._graphs = DecodeGraphs(self._model, self._attention, vocabulary.size)
        self._logits: LastLogits | None = None

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(
            max_sequences=self._options.max_sequences,
            kv_cells=self._kv_cells,
            drop=True,
            repos=True,
            tail_gap=True,
            range_export=True,
            segment_batch=True,
            sparse_attention=self._attention.sparse is not None,
            grammar=True,
            kv_types=("f16", "f32", "q8_0"),
        )

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""
        return self._info

    @property
    def threads(self) -> int:
        """CPU threads that a step uses."""
        return self._threads.threads

    @property
    def kv(self) -> PagedKv:
        """The cells, for tests and measurements."""
        return self._kv

    @property
    def read_bytes(self) -> int:
        """Bytes of the weights that each step reads: all but the embedding, of which it reads a row a token."""
        weights = self._model.weights
        return weights.nbytes - (0 if weights.head is weights.embedding else weights.embedding.nbytes)

    # -- text --------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`; `special` recognises control tokens. Never adds BOS or EOS. Any thread."""
        return self._vocabulary.tokenize(text, special=special)

    def token_bytes(self, token: int) -> bytes:
        """Return what a token prints; control tokens print nothing. Any thread."""
        return self._vocabulary.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """Tell if a token ends a turn. Any thread."""
        return self._vocabulary.is_end(token)

    # -- computing ---------------------------------------------------------------------------------------------

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Compute the batch and add its cells; all of it or nothing."""
        self._deferred.check()
        self._check_batch(batch)
        self._follow_load()
        started_s = time.monotonic()
        try:
            growth = self._kv.grow(
                [i.sequence for i in batch], [len(i.tokens) for i in batch], [i.start for i in batch]
            )
        except EngineError:
            self._deferred.clear()  # whoever deferred is told so now, and lets go of all cells
            raise
        try:
            self._logits = LastLogits(batch, *self._compute(lay_out(batch, growth, self._deferred.waiting())))
        except (RuntimeError, ValueError, EngineError) as error:
            self._kv.undo(growth)
            raise _computing(batch, error) from error
        finally:
            self._deferred.clear()
        self._kv.commit(growth)
        single = all(len(item.tokens) == 1 for item in batch)
        self._threads.observe(time.monotonic() - started_s, single_tokens=single)

    def defer(self, item: BatchItem) -> None:
        """Add the cells of an item that asks for no logits, and compute them with the next `decode`."""
        self._check_batch([item])
        assert not item.logits
        assert not item.all_logits
        self._deferred.add(item)

    def settle(self) -> None:
        """Compute what was deferred."""
        self._deferred.check()
        if not len(self._deferred):
            return
        *before, (item, growth) = self._deferred.waiting()
        try:
            self._compute(lay_out([item], growth, before))
        except (RuntimeError, ValueError, EngineError) as error:
            raise _computing([item for item, _ in self._deferred.waiting()], error) from error
        finally:
            self._deferred.clear()

    def _follow_load(self) -> None:
        if self._kv.pool.device.type == "cpu":
            threads = self._threads.next_step()
            if threads != self._threads_set:
                torch.set_num_threads(threads)
                self._threads_set = threads

    def _compute(self, step: Step) -> tuple[torch.Tensor, Best | None]:
        with torch.inference_mode():
            if self._graphs is not None and self._graphs.serves(step):
                return self._graphs.run(step)
            plan = self._attention.plan(step)
            tokens, wanted = (torch.from_numpy(x).to(self._kv.pool.device) for x in (step.tokens, step.wanted))
            found = self._model.logits(self._attention, plan, tokens, wanted)
            return found[:, : self._vocabulary.size], None  # rows beyond only make the matrix a round size

    def _check_batch(self, batch: Sequence[BatchItem]) -> None:
        if not batch or not all(len(item.tokens) for item in batch):
            raise EngineError(f"a batch of {len(batch)} items: at least one is needed, of at least one token each")
        if len({item.sequence for item in batch}) != len(batch):
            raise EngineError("a batch has two items of one sequence")
        for item in batch:
            self._check_sequence(item.sequence)
            end = self._kv.end(item.sequence)
            if item.start < end:
                raise EngineError(
                    f"sequence {item.sequence} ends at position {end - 1}, but the batch starts at {item.start}"
                )
            if min(item.tokens) < 0 or max(item.tokens) >= self._model.shape.vocabulary_size:
                raise EngineError(f"a token is outside the vocabulary of {self._model.shape.vocabulary_size}")

    def _check_sequence(self, sequence: int) -> None:
        if not 0 <= sequence < self._options.max_sequences:
            raise EngineError(f"sequence id {sequence} is outside 0..{self._options.max_sequences - 1}")

    def sampler(self, params: SamplingParams) -> Sampler:
        """Return a new sampler."""
        vocabulary = self._vocabulary
        return TorchSampler(params, vocabulary.size, self._last, piece=vocabulary.token_bytes, is_end=vocabulary.is_end)

    def _last(self) -> LastLogits:
        if self._logits is None:
            raise EngineError("reading logits: nothing was computed yet")
        return self._logits

    def logits(self, item: int) -> FloatArray:
        """Return a copy of the logits of item number `item` of the last `decode`, which asked for some."""
        return self._last().copied(item)

    # -- cells -------------------------------------------------------------------------------------------------

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Let `target` hold the cells of `source` at positions start <= p < end too. No bytes move."""
        self._check_sequence(source)
        self._check_sequence(target)
        self._kv.share(source, target, start, end)

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let `sequence` let go of its cells at positions start <= p < end (-1: to the end)."""
        self._check_sequence(sequence)
        self._kv.release(sequence, start, end)

    def save(self, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> PagedCells:
        """Hold on to the cells at these position ranges; no bytes move."""
        self._check_sequence(sequence)
        return self._kv.save(sequence, ranges)

    def load(self, saved: SavedCells, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> None:
        """Let `sequence` hold saved cells at these positions; no bytes move, wherever they stood."""
        self._check_sequence(sequence)
        assert isinstance(saved, PagedCells)
        self._kv.load(saved, sequence, ranges)

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the bytes that `export_cells` writes for a run of `tokens`. Any thread."""
        return self._exporter.export_bytes(tokens, storage)

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write the KV of `sequence` at these positions into `into`; return the bytes used."""
        self._check_sequence(sequence)
        self._deferred.settle_any()
        return self._exporter.export_cells(sequence, start, end, into, storage)

    def import_cells(self, data: memoryview, sequence: SequenceId, start: int, end: int) -> None:
        """Add new cells to `sequence` at these positions: those in `data`."""
        self.import_runs([PackedRun(data, start, end)], sequence)

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Do the same for several runs: all of them or none."""
        self._check_sequence(sequence)
        self._deferred.settle_any()
        self._exporter.import_runs(runs, sequence)

    def position_range(self, sequence: SequenceId) -> tuple[int, int] | None:
        """Return the lowest and highest position that `sequence` holds, None when it holds nothing."""
        self._check_sequence(sequence)
        return self._kv.position_range(sequence)

    def close(self) -> None:
        """Free the model. Nothing may be called afterwards; a second call does nothing."""
        gone: Any = None
        self._model = self._attention = self._exporter = self._graphs = self._kv = self._deferred = gone
        self._logits = None
        self._vocabulary.close()
        if self._on_gpu:
            torch.cuda.empty_cache()  # the next model needs the room


def _computing(batch: Sequence[BatchItem], error: Exception) -> EngineError:
    doing = f"computing {sum(len(item.tokens) for item in batch)} tokens"
    if isinstance(error, EngineError):
        return EngineError(f"{doing}: {error.message}", hint=error.hint)
    return EngineError(f"{doing}: {error}", hint="see the daemon's log")
