"""llama.cpp's own calls over a tiny model, without our engine between: sequences, positions, blobs, logits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp import library
from akashic_daemon.engine.llama_cpp.blob import Blob, ByteArray, kv_shape_of, parse_blob
from akashic_daemon.engine.llama_cpp.rope import Rope, other_ropes, rope_of
from akashic_daemon.engine.llama_cpp.rotation_check import Findings, examine
from akashic_daemon.engine.llama_cpp.state import load_sequence, save_sequence

KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
Logits = npt.NDArray[np.float32]


class Bare:
    """A context with a unified cache of `cells` cells. Sequence ids are the caller's."""

    def __init__(self, file: Path, *, kv_type: str = "f32", cells: int = 256, sequences: int = 16) -> None:
        library.prepare()
        self.file = file
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        assert self.model
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = cells
        params.n_seq_max = sequences
        params.kv_unified = params.swa_full = params.no_perf = True
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.flash_attn_type = int(kv_type == "q8_0")
        params.n_threads = params.n_threads_batch = 1
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.metadata = dict(self._metadata())
        layers, sliding = llama_cpp.llama_model_n_layer(self.model), llama_cpp.llama_model_n_swa(self.model)
        shape = kv_shape_of(self.metadata, layers, sliding, kv_type)
        assert not isinstance(shape, str), shape
        self.shape = shape
        self._batch = llama_cpp.llama_batch_init(cells, 0, 1)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def _metadata(self) -> Iterator[tuple[str, str]]:
        buffer = ctypes.create_string_buffer(256)
        for index in range(llama_cpp.llama_model_meta_count(self.model)):
            llama_cpp.llama_model_meta_key_by_index(self.model, index, buffer, len(buffer))
            key = buffer.value.decode()
            llama_cpp.llama_model_meta_val_str_by_index(self.model, index, buffer, len(buffer))
            yield key, buffer.value.decode("utf-8", "replace")

    def rope(self) -> Rope | str:
        window = llama_cpp.llama_n_ctx_seq(self.context)
        return rope_of(self.metadata, llama_cpp.llama_model_rope_type(self.model), self.file, window)

    def decode(self, sequence: int, tokens: Sequence[int], start: int) -> Logits:
        """Compute `tokens` from position `start` on; return the logits of each."""
        code = self.try_decode([(sequence, tokens, start)])
        assert code == 0, code
        return np.array([self._row(row) for row in range(len(tokens))])

    def _row(self, row: int) -> Logits:
        found = llama_cpp.llama_get_logits_ith(self.context, row)
        return np.ctypeslib.as_array(found, shape=(self._vocabulary,)).copy()

    def try_decode(self, items: Sequence[tuple[int, Sequence[int], int]]) -> int:
        """Compute several sequences' tokens in one batch; return llama.cpp's answer."""
        at = 0
        for sequence, tokens, start in items:
            for offset, token in enumerate(tokens):
                self._batch.token[at], self._batch.pos[at] = token, start + offset
                self._batch.n_seq_id[at], self._batch.seq_id[at][0] = 1, sequence
                self._batch.logits[at] = 1
                at += 1
        self._batch.n_tokens = at
        return int(llama_cpp.llama_decode(self.context, self._batch))

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        assert llama_cpp.llama_memory_seq_rm(self.memory, sequence, start, end)

    def copy(self, source: int, target: int, start: int = 0, end: int = -1) -> None:
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, start, end)

    def end(self, sequence: int) -> int:
        """Return the highest position, -1 when there is none."""
        return int(llama_cpp.llama_memory_seq_pos_max(self.memory, sequence))

    def save(self, sequence: int) -> ByteArray:
        return save_sequence(self.context, sequence)

    def load(self, sequence: int, blob: ByteArray) -> None:
        load_sequence(self.context, sequence, blob)

    def parse(self, blob: ByteArray) -> Blob:
        return parse_blob(blob, self.shape)

    def probe(self, positions: Sequence[int]) -> list[ByteArray]:
        """Compute one token alone at each position, as `examine` asks for. Empties those sequences."""
        for sequence in range(len(positions)):
            self.remove(sequence)
        assert self.try_decode([(n, [65], position) for n, position in enumerate(positions)]) == 0
        blobs = [self.save(n) for n in range(len(positions))]
        for sequence in range(len(positions)):
            self.remove(sequence)
        return blobs

    def examine(self, window: int) -> Findings:
        rope = self.rope()
        others = [] if isinstance(rope, str) else other_ropes(self.metadata, rope, self.file, window)
        return examine(self.shape, rope, self.probe, window, others)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)


@contextmanager
def bare(file: Path, *, kv_type: str = "f32", cells: int = 256) -> Iterator[Bare]:
    """Open a tiny model and close it."""
    made: Any = Bare(file, kv_type=kv_type, cells=cells)
    try:
        yield made
    finally:
        made.close()
