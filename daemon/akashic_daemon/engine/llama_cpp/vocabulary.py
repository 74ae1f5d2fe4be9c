"""The vocabulary of a GGUF alone, read by llama.cpp: no weights are loaded."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp

from akashic_daemon.engine.llama_cpp import library
from akashic_daemon.errors import EngineError, ModelError


class LlamaVocabulary:
    """A `Vocabulary` (engine/vocabulary); tokenizing is safe on any thread."""

    def __init__(self, path: Path) -> None:
        library.prepare()
        library.clear_errors()
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ModelError(
                f"reading the vocabulary of {path}: {library.last_errors()}",
                hint="download it again, or upgrade llama.cpp",
            )
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._pieces: dict[int, bytes] = {}
        template = llama_cpp.llama_model_chat_template(self._model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else None
        self.size = int(llama_cpp.llama_vocab_n_tokens(self._vocabulary))
        self.bos = self._control_text(llama_cpp.llama_vocab_bos(self._vocabulary))
        self.eos = self._control_text(llama_cpp.llama_vocab_eos(self._vocabulary))
        self.add_bos = bool(llama_cpp.llama_vocab_get_add_bos(self._vocabulary))
        self.digest = ""

    def _control_text(self, token: int) -> str:
        return llama_cpp.llama_vocab_get_text(self._vocabulary, token).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`; `special` recognises control tokens. Never adds BOS or EOS."""
        if not text:
            return []
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        out = (ctypes.c_int32 * room)()
        count = llama_cpp.llama_tokenize(self._vocabulary, data, len(data), out, room, False, special)
        if count < 0:
            raise EngineError(
                f"tokenizing {len(data):,} bytes needs {-count:,} tokens, more than bytes; llama.cpp's vocabulary is odd"
            )
        return out[:count]

    def token_bytes(self, token: int) -> bytes:
        """Return what a token prints; control tokens print nothing."""
        piece = self._pieces.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(256)
            size = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, False)
            piece = self._pieces[token] = buffer.raw[:size] if size > 0 else b""
        return piece

    def is_end(self, token: int) -> bool:
        """Tell if a token ends a turn."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, token))

    def close(self) -> None:
        """Free the vocabulary."""
        if self._model is not None:
            llama_cpp.llama_model_free(self._model)
            self._model = None
