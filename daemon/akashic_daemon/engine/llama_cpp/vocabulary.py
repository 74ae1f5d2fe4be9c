"""What llama.cpp knows of a model's text: tokens, their bytes, the marks. Of a loaded model, or of a GGUF's vocabulary alone."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp

from akashic_daemon.engine.llama_cpp import library
from akashic_daemon.errors import EngineError, ModelError


class ModelText:
    """The text side of a model of llama.cpp, which must stay loaded. Safe on any thread."""

    def __init__(self, model: Any) -> None:
        self.native = llama_cpp.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        template = llama_cpp.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else None
        self.size = int(llama_cpp.llama_vocab_n_tokens(self.native))
        self.bos = self._control_text(llama_cpp.llama_vocab_bos(self.native))
        self.eos = self._control_text(llama_cpp.llama_vocab_eos(self.native))
        self.add_bos = bool(llama_cpp.llama_vocab_get_add_bos(self.native))

    def _control_text(self, token: int) -> str:
        return llama_cpp.llama_vocab_get_text(self.native, token).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`; `special` recognises control tokens. Never adds BOS or EOS."""
        if not text:
            return []
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        out = (ctypes.c_int32 * room)()
        count = llama_cpp.llama_tokenize(self.native, data, len(data), out, room, False, special)
        if count < 0:
            raise EngineError(
                f"tokenizing {len(data):,} bytes needs {-count:,} tokens, more than bytes; llama.cpp's vocabulary is odd"
            )
        return out[:count]

    def token_bytes(self, token: int) -> bytes:
        """Return what a token prints; control tokens print nothing."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = piece_of(self.native, token, special=False)
        return piece

    def is_end(self, token: int) -> bool:
        """Tell if a token ends a turn."""
        return bool(llama_cpp.llama_vocab_is_eog(self.native, token))


def piece_of(vocabulary: Any, token: int, *, special: bool) -> bytes:
    """Return the bytes of a token, however many; of a control token its name with `special`, else nothing."""
    buffer = ctypes.create_string_buffer(256)
    size = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, len(buffer), 0, special)
    if size < 0:  # it needs so much room
        buffer = ctypes.create_string_buffer(-size)
        size = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, len(buffer), 0, special)
    return buffer.raw[:size]


class LlamaVocabulary(ModelText):
    """A `Vocabulary` (engine/vocabulary) read from a GGUF: no weights are loaded."""

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
        super().__init__(self._model)
        self.digest = ""

    def close(self) -> None:
        """Free the vocabulary."""
        if self._model is not None:
            llama_cpp.llama_model_free(self._model)
            self._model = None
