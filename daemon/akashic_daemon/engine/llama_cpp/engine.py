"""llama.cpp behind the `Engine` contract: one unified KV cache, many sequences, one thread.

`share` and `release` are metadata only (`llama_memory_seq_cp` / `seq_rm` in a unified cache). Everything that would
abort the process is checked before the call: sequence ids, batch size, position order.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

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
from akashic_daemon.engine.fingerprint import fingerprint, weights_digest
from akashic_daemon.engine.gguf_header import read_header, tokenizer_digest
from akashic_daemon.engine.llama_cpp import library
from akashic_daemon.engine.llama_cpp.batch import NumpyBatch
from akashic_daemon.engine.llama_cpp.blob import ByteArray, KvShape, kv_shape_of
from akashic_daemon.engine.llama_cpp.cells import SPARE_CELLS, CellMover, LlamaCells
from akashic_daemon.engine.llama_cpp.interrupt import Interrupt
from akashic_daemon.engine.llama_cpp.packed import CellPacker, PackedForm
from akashic_daemon.engine.llama_cpp.rope import other_ropes, picked_factors, rope_of
from akashic_daemon.engine.llama_cpp.rotation_check import Findings, examine, probe_positions
from akashic_daemon.engine.llama_cpp.sampler import LlamaSampler
from akashic_daemon.engine.llama_cpp.state import save_sequence
from akashic_daemon.engine.llama_cpp.twins import Twins
from akashic_daemon.engine.llama_cpp.vocabulary import ModelText
from akashic_daemon.engine.parts import parts
from akashic_daemon.engine.threads import LoadFollower
from akashic_daemon.errors import ConfigError, EngineError, ModelError
from akashic_daemon.types import SequenceId

_KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
_KV_BITS = {"f32": 32.0, "f16": 16.0, "q8_0": 8.5}
_RECURRENT = "the model is recurrent or hybrid: dropped text stays in its state"
_HOLE_S, _HOLE_FUSED_S = 5e-6, 1e-8
"""What a hole costs a step: SmolLM2-135M on two cores, 3,896 holes 20 ms; on an H200, 28,000 holes 0.3 ms."""
_UBATCH_TOKENS = 512
_UBATCH_TOKENS_UNFUSED = 128
"""Without fused attention the scores of a micro-batch over all cells are kept: smaller is lighter and as fast on CPUs."""


@dataclass(frozen=True, slots=True)
class LlamaCppOptions:
    """How to load a model. Zero means: take the model's own, or what the machine gives."""

    name: str
    path: Path
    window_tokens: int = 0
    kv_tokens: int = 0
    kv_type: str = "f16"
    max_sequences: int = 128
    gpu_layers: int = -1
    flash_attention: str = "auto"
    threads: int = 0
    cores: int = 1
    memory_bytes: int = 0
    batch_tokens: int = 2048
    digests: Path | None = None
    """Where digests of weights are remembered."""


class LlamaCppEngine:
    """A GGUF loaded by llama.cpp. Make, use and close it on one thread (tokenizing is safe anywhere)."""

    def __init__(self, options: LlamaCppOptions) -> None:
        size_bytes = read_header(options.path).size_bytes
        library.prepare()
        library.clear_errors()
        self._options = options
        self.warnings: list[str] = []
        self._model: Any = None
        self._context: Any = None
        try:
            self._open(size_bytes)
        except BaseException:
            self.close()  # nobody else could: weights and KV would stay as long as the daemon
            raise

    # -- loading -----------------------------------------------------------------------------------------------

    def _open(self, size_bytes: int) -> None:
        """Load the model, make its context and find out what it can do."""
        options = self._options
        self._model = self._load_model(size_bytes)
        self._twins = Twins.for_model(self._model, options.max_sequences)
        if self._twins.sequences < options.max_sequences:
            self._options = replace(options, max_sequences=self._twins.sequences)
            self.warnings.append(
                f"a sliding-window model may have {self._twins.sequences} branches resident at once, "
                f"not {options.max_sequences}: each takes two of llama.cpp's sequences"
            )
        self._vocabulary = ModelText(self._model)
        self._window_tokens, self._kv_tokens = self._size_cache()
        self._context = self._make_context()
        self._memory = llama_cpp.llama_get_memory(self._context)
        probed = len(probe_positions(self._window_tokens))
        self._batch = NumpyBatch(
            max(min(options.batch_tokens, self._kv_tokens), probed),
            twin=self._twins.offset,
            twinned=self._twins.twinned,
        )
        self._threads = LoadFollower(options.cores, fixed=options.threads)
        self._threads_set = 0
        self._info = self._describe(size_bytes)
        self._one_cell: ByteArray | None = None
        self._cells, shape = self._make_mover()
        self._packer = self._make_packer(shape)
        self._capabilities = self._find_capabilities()
        self._interrupt = Interrupt(self._context)

    def _load_model(self, size_bytes: int) -> Any:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 999 if self._options.gpu_layers < 0 else self._options.gpu_layers
        if library.uses_amx():
            params.use_extra_bufts = False
            self.warnings.append(
                "this llama.cpp build uses AMX, which some virtual machines announce but can't run; "
                "its AMX and repacked weights are off (./install.sh builds one without AMX)"
            )
        model = llama_cpp.llama_model_load_from_file(str(self._options.path).encode(), params)
        if not model:
            raise ModelError(
                f"loading the model {self._options.path} ({size_bytes:,} bytes): {library.last_errors()}",
                hint="the file may be cut off or made for a newer llama.cpp; download it again or upgrade",
            )
        return model

    def _kv_bytes_per_token(self) -> int:
        layers = llama_cpp.llama_model_n_layer(self._model)
        head_width = llama_cpp.llama_model_n_embd(self._model) // max(1, llama_cpp.llama_model_n_head(self._model))
        metadata = dict(self._metadata())
        attention = f"{metadata.get('general.architecture')}.attention"
        # Qwen3's and Gemma's heads aren't a share of the width: the file says how wide their K and V are.
        widths = sum(int(metadata.get(f"{attention}.{what}_length", head_width)) for what in ("key", "value"))
        width = widths * llama_cpp.llama_model_n_head_kv(self._model)
        return int(layers * width * _KV_BITS[self._options.kv_type] / 8)

    def _size_cache(self) -> tuple[int, int]:
        trained = llama_cpp.llama_model_n_ctx_train(self._model)
        window = self._options.window_tokens or trained
        if self._options.kv_tokens:
            kv_tokens = self._options.kv_tokens
            if self._options.window_tokens > kv_tokens:
                raise ConfigError(
                    f"cache.kv_tokens is {kv_tokens}, less than model.window_tokens {window}",
                    hint="raise cache.kv_tokens or lower model.window_tokens",
                )
            return min(window, kv_tokens), kv_tokens
        affordable = self._options.memory_bytes // 4 // max(1, self._kv_bytes_per_token())
        kv_tokens = 4 * window if not affordable else min(4 * window, max(4096, affordable))
        if window > kv_tokens:
            self.warnings.append(
                f"the window is {kv_tokens:,} of {window:,} trained tokens, to keep KV in a quarter of RAM"
            )
        return min(window, kv_tokens), kv_tokens

    def _make_context(self) -> Any:
        params = llama_cpp.llama_context_default_params()
        # With fewer cells than sequences llama.cpp ends the process.
        params.n_ctx = max(self._kv_tokens + SPARE_CELLS, self._twins.native_sequences)
        params.n_batch = max(min(self._options.batch_tokens, self._kv_tokens), self._twins.native_sequences)
        fused = self._wants_flash_attention()
        params.n_ubatch = min(_UBATCH_TOKENS if fused else _UBATCH_TOKENS_UNFUSED, params.n_batch)
        params.n_seq_max = self._twins.native_sequences
        params.kv_unified = True
        params.swa_full = True
        params.flash_attn_type = int(fused)
        params.type_k = params.type_v = _KV_TYPES[self._options.kv_type]
        params.offload_kqv = True
        params.no_perf = True
        params.n_threads = params.n_threads_batch = self._options.threads or self._options.cores
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            needed = self._kv_tokens * self._kv_bytes_per_token()
            raise ModelError(
                f"making room for {self._kv_tokens:,} KV cells ({needed:,} bytes): {library.last_errors()}",
                hint="lower cache.kv_tokens or model.window_tokens",
            )
        return context

    def _wants_flash_attention(self) -> bool:
        if self._options.flash_attention != "auto":
            return self._options.flash_attention == "on"
        on_gpu = llama_cpp.llama_supports_gpu_offload() and self._options.gpu_layers != 0
        return bool(on_gpu) or self._options.kv_type == "q8_0"

    def _make_mover(self) -> tuple[CellMover, KvShape | str]:
        """Find out, from the metadata and from the model itself, how its saved cells look and how its keys turn."""
        metadata, kv_type = self._info.metadata, self._options.kv_type
        first, path = self._options.max_sequences, self._options.path
        layers, n_swa = llama_cpp.llama_model_n_layer(self._model), llama_cpp.llama_model_n_swa(self._model)
        window = llama_cpp.llama_n_ctx_seq(self._context)
        if self._state_is_recurrent():
            shape, rope = kv_shape_of(metadata, layers, n_swa, kv_type), _RECURRENT
            return CellMover(self._context, self._memory, shape, Findings(_RECURRENT, rope), first), shape
        shape = kv_shape_of(metadata, layers, n_swa, kv_type)
        turn = rope_of(metadata, llama_cpp.llama_model_rope_type(self._model), path, window)
        others = [] if isinstance(turn, str) else other_ropes(metadata, turn, path, window)
        found = examine(shape, turn, self._probe, self._window_tokens, others)
        return CellMover(self._context, self._memory, shape, found, first), shape

    def _make_packer(self, shape: KvShape | str) -> CellPacker:
        """Let KV leave as flat bytes, where the model showed that its saved cells are understood."""
        found, cell = self._cells.findings, self._one_cell
        form: PackedForm | str = found.blobs or "no saved cell of it was seen"
        if found.blobs is None and cell is not None and not isinstance(shape, str):
            form = PackedForm.seen_in(cell, shape, found.rope)
        return CellPacker(self._context, self._memory, form, self._options.max_sequences)

    def _probe(self, positions: Sequence[int]) -> list[ByteArray]:
        """Compute one token alone at each position in hidden sequences, and return their blobs."""
        sequences = [SequenceId(self._options.max_sequences + number) for number in range(len(positions))]
        token = min(100, self._info.vocabulary_size - 1)
        batch = [BatchItem(s, (token,), p, False) for s, p in zip(sequences, positions, strict=True)]
        self._batch.fill(batch)
        code = llama_cpp.llama_decode(self._context, self._batch.native)
        if code != 0:
            raise EngineError(f"computing one token to see how the model turns keys: llama_decode returned {code}")
        blobs = [save_sequence(self._context, sequence) for sequence in sequences]
        for sequence in sequences:
            self._remove(sequence, -1, -1)
        self._one_cell = blobs[0]
        return blobs

    def _state_is_recurrent(self) -> bool:
        return bool(llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model))

    def _find_capabilities(self) -> Capabilities:
        why_not: dict[str, str] = {}
        found = self._cells.findings
        if self._state_is_recurrent():
            why_not["drop"] = _RECURRENT
        if found.blobs is not None:
            why_not |= dict.fromkeys(("repos", "tail_gap", "range_export"), found.blobs)
        elif isinstance(found.rope, str):
            why_not["repos"] = found.rope
        return Capabilities(
            max_sequences=self._options.max_sequences,
            kv_cells=self._kv_tokens,
            drop="drop" not in why_not,
            repos="repos" not in why_not,
            tail_gap="tail_gap" not in why_not,
            range_export="range_export" not in why_not,
            kv_types=tuple(_KV_TYPES),
            hole_s=_HOLE_FUSED_S if self._wants_flash_attention() else _HOLE_S,
            grammar=True,
            why_not=why_not,
        )

    def _describe(self, size_bytes: int) -> ModelInfo:
        model, vocabulary = self._model, self._vocabulary
        metadata = dict(self._metadata())
        per_token = self._kv_bytes_per_token()
        weights, settings = weights_digest(self._options.path, self._options.digests), self._settings(metadata)
        return ModelInfo(
            name=self._options.name,
            path=str(self._options.path),
            description=self._text(llama_cpp.llama_model_desc, model),
            architecture=metadata.get("general.architecture", "unknown"),
            parameters_count=llama_cpp.llama_model_n_params(model),
            size_bytes=size_bytes,
            kv_bytes_per_token=per_token,
            kv_bytes=per_token * self._kv_tokens,
            vocabulary_size=vocabulary.size,
            trained_window_tokens=llama_cpp.llama_model_n_ctx_train(model),
            window_tokens=self._window_tokens,
            chat_template=vocabulary.chat_template,
            bos=vocabulary.bos,
            eos=vocabulary.eos,
            add_bos=vocabulary.add_bos,
            fingerprint=fingerprint(weights, settings),
            metadata=metadata,
            parts={**parts(weights, settings), "tokenizer": tokenizer_digest(self._options.path)},
        )

    def _settings(self, metadata: Mapping[str, str]) -> dict[str, str | int | bool]:
        """Return what changes KV besides the weights. How many cells there are doesn't, so a budget may be changed."""
        window = llama_cpp.llama_n_ctx_seq(self._context)
        return {
            "engine": "llama_cpp",
            "build": llama_cpp.__version__,
            "layout_version": 3,
            "kv_type": self._options.kv_type,
            "fused_attention": self._wants_flash_attention(),
            "rope_factors": picked_factors(metadata, self._options.path, window),
            "offloaded": bool(llama_cpp.llama_supports_gpu_offload() and self._options.gpu_layers != 0),
        }

    def _metadata(self) -> list[tuple[str, str]]:
        out = []
        for index in range(llama_cpp.llama_model_meta_count(self._model)):
            key = self._text(llama_cpp.llama_model_meta_key_by_index, self._model, index)
            if not key.startswith("tokenizer.") or key == "tokenizer.ggml.model":
                out.append((key, self._text(llama_cpp.llama_model_meta_val_str_by_index, self._model, index)))
        return out

    @staticmethod
    def _text(function: Any, *args: Any) -> str:
        buffer = ctypes.create_string_buffer(4096)
        function(*args, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""
        return self._info

    @property
    def threads(self) -> int:
        """Threads that the last step used."""
        return self._threads.threads

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

    # -- cells -------------------------------------------------------------------------------------------------

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Compute the batch and add its cells; all of it or nothing."""
        self._check_batch(batch)
        threads = self._threads.next_step()
        if threads != self._threads_set:
            llama_cpp.llama_set_n_threads(self._context, threads, threads)
            self._threads_set = threads
        self._batch.fill(batch)
        started_s = time.monotonic()
        try:
            self._bridge_gaps(batch)
            code = llama_cpp.llama_decode(self._context, self._batch.native)
            if code != 0:
                self._interrupt.clear_if(code)
                for item in batch:
                    self._remove(item.sequence, item.start, -1)
        finally:
            self._cells.settle()
        if code != 0:
            reason = {1: "no KV cell is free", 2: "it was aborted"}.get(code, f"llama_decode returned {code}")
            raise EngineError(f"computing {self._batch.native.n_tokens} tokens: {reason}; {library.last_errors()}")
        single = all(len(item.tokens) == 1 for item in batch)
        self._threads.observe(time.monotonic() - started_s, single_tokens=single)

    def interrupt(self) -> None:
        """See `Interruptible`."""
        self._interrupt.set()

    def _bridge_gaps(self, batch: Sequence[BatchItem]) -> None:
        for item in batch:
            last = llama_cpp.llama_memory_seq_pos_max(self._memory, item.sequence)
            if 0 <= last < item.start - 1:
                for native in self._twins.ids(item.sequence):
                    self._cells.bridge(native, last, item.start)

    def _check_batch(self, batch: Sequence[BatchItem]) -> None:
        tokens = sum(len(item.tokens) for item in batch)
        if not batch or not all(len(item.tokens) for item in batch) or tokens > self._batch.capacity:
            raise EngineError(f"a batch of {tokens} tokens: 1 to {self._batch.capacity} fit, at least 1 an item")
        for item in batch:
            self._check_item(item)

    def _check_item(self, item: BatchItem) -> None:
        self._check_sequence(item.sequence)
        last = llama_cpp.llama_memory_seq_pos_max(self._memory, item.sequence)
        if item.start <= last:
            raise EngineError(f"sequence {item.sequence} ends at position {last}, but the batch starts at {item.start}")
        if 0 <= last < item.start - 1 and not self._capabilities.tail_gap:
            raise EngineError(
                f"positions {last + 1} to {item.start - 1} of sequence {item.sequence} would stay empty, "
                f"which this model can't have: {self._capabilities.why_not['tail_gap']}"
            )

    def _check_sequence(self, sequence: int) -> None:
        if not 0 <= sequence < self._options.max_sequences:
            raise EngineError(f"sequence id {sequence} is outside 0..{self._options.max_sequences - 1}")

    def sampler(self, params: SamplingParams) -> Sampler:
        """Return a new sampler."""
        return LlamaSampler(self._context, self._vocabulary.native, params, lambda item: self._batch.rows[item])

    def logits(self, item: int) -> FloatArray:
        """Return a copy of the logits of item number `item` of the last `decode`, which asked for all of them."""
        end = self._batch.rows[item] + 1
        first = self._batch.rows[item - 1] + 1 if item else 0
        out = np.empty((end - first, self._info.vocabulary_size), np.float32)
        for row in range(first, end):
            found = llama_cpp.llama_get_logits_ith(self._context, row)
            if not found:
                raise EngineError(f"reading the logits of batch row {row}: the batch didn't ask for them")
            out[row - first] = np.ctypeslib.as_array(found, shape=(out.shape[1],))
        return out

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Let `target` hold the cells of `source` at positions start <= p < end too. No bytes move."""
        self._check_sequence(source)
        self._check_sequence(target)
        if start < end and source != target:
            for native in self._twins.ids(target):
                llama_cpp.llama_memory_seq_cp(self._memory, source, native, start, end)

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let `sequence` let go of its cells at positions start <= p < end (-1: to the end)."""
        self._check_sequence(sequence)
        self._remove(sequence, start, end)

    def _remove(self, sequence: int, start: int, end: int) -> None:
        for native in self._twins.ids(sequence):
            if not llama_cpp.llama_memory_seq_rm(self._memory, native, start, end):
                raise EngineError(f"llama.cpp refused to release positions {start}..{end} of sequence {sequence}")

    def save(self, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> LlamaCells:
        """Copy out the cells at these ascending position ranges."""
        self._check_sequence(sequence)
        return self._cells.save(sequence, ranges)

    def load(self, saved: SavedCells, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> None:
        """Add saved cells at these positions; rotated where they differ."""
        self._check_sequence(sequence)
        assert isinstance(saved, LlamaCells)
        self._cells.load(saved, sequence, ranges)
        self._twins.follow(self._memory, sequence, ranges)

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the most bytes that `export_cells` writes for a run of `tokens`. Any thread."""
        return self._packer.export_bytes(tokens, storage)

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write the KV of `sequence` at positions start <= p < end into `into`; return the bytes used."""
        self._check_sequence(sequence)
        return self._packer.export_cells(sequence, start, end, into, storage)

    def import_cells(self, data: memoryview, sequence: SequenceId, start: int, end: int) -> None:
        """Add new cells to `sequence` at positions start <= p < end: those in `data`; rotated where they stood elsewhere."""
        self.import_runs([PackedRun(data, start, end)], sequence)

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Do what `import_cells` does for several runs: all of them or none."""
        self._check_sequence(sequence)
        self._packer.import_runs(runs, sequence)
        self._twins.follow(self._memory, sequence, ((run.start, run.end) for run in runs))

    def position_range(self, sequence: SequenceId) -> tuple[int, int] | None:
        """Return the lowest and highest position that `sequence` holds, None when it holds nothing."""
        self._check_sequence(sequence)
        low = llama_cpp.llama_memory_seq_pos_min(self._memory, sequence)
        high = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence)
        return None if high < 0 else (low, high)

    def close(self) -> None:
        """Free context and model. Nothing may be called afterwards; a second call does nothing."""
        context, model = self._context, self._model
        self._context = self._model = None
        if context is not None:
            llama_cpp.llama_free(context)
        if model is not None:
            llama_cpp.llama_model_free(model)
