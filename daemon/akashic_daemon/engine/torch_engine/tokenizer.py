"""A Hugging Face folder's tokenizer as a `Vocabulary`: tokenizer.json run by the `tokenizers` package.

Tokens are spelt as bytes one by one, so that an answer can be streamed; kinds of decoders that can't be are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from akashic_daemon.engine.hf_folder import read_json
from akashic_daemon.errors import BadModelFile, Unsupported

_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
)
"""Control tokens that end a turn whatever the folder says, as llama.cpp has it too."""
_SPACE = "▁"


class HfTokenizer:
    """See the module's text. Any thread may use it."""

    def __init__(self, folder: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise Unsupported(
                f"opening the model {folder}: its tokenizer needs the package tokenizers, which isn't installed",
                hint="`./install.sh --with gpu`",
            ) from error
        described = read_json(folder / "tokenizer.json")
        file = folder / "tokenizer.json"
        try:
            self._plain = tokenizers.Tokenizer.from_file(str(file))
            self._special = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises nothing more special
            raise BadModelFile(f"reading {file}: {error}", hint="download it again") from error
        self._plain.encode_special_tokens = True
        self._by_bytes = _spells_bytes(described, str(folder))
        added = self._special.get_added_tokens_decoder()
        self._controls = frozenset(token for token, entry in added.items() if entry.special)
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self.size = int(self._special.get_vocab_size(with_added_tokens=True))
        self.digest = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        self._read_settings(folder)

    def _read_settings(self, folder: Path) -> None:
        settings = _optional(folder / "tokenizer_config.json")
        self.bos, self.eos = _content(settings.get("bos_token")), _content(settings.get("eos_token"))
        self.chat_template = _template(folder, settings)
        first = self._special.token_to_id(self.bos) if self.bos else None
        self.add_bos = first is not None and self._special.encode("a").ids[:1] == [first]
        ends = {self._special.token_to_id(text) for text in (*_ENDS, self.eos) if text}
        for name in ("config.json", "generation_config.json"):
            found = _optional(folder / name).get("eos_token_id")
            ends |= set(found) if isinstance(found, list) else {found}
        self._ends = frozenset(token for token in ends if isinstance(token, int))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`; `special` recognises control tokens. Never adds BOS or EOS."""
        clean = text.encode("utf-8", "replace").decode()
        return list((self._special if special else self._plain).encode(clean, add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        """Return what a token prints; control tokens print nothing."""
        if token in self._controls:
            return b""
        if token in self._added:
            return self._added[token]
        text = self._special.id_to_token(token)
        if text is None:
            return b""
        if self._by_bytes:
            return bytes(_BYTES.get(character, ord("?")) for character in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace(_SPACE, " ").encode()

    def is_end(self, token: int) -> bool:
        """Tell if a token ends a turn."""
        return token in self._ends

    def close(self) -> None:
        """Do nothing: nothing but memory is held."""


def _byte_characters() -> dict[str, int]:
    """Return which byte each character of a byte-level vocabulary stands for."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_characters()


def _spells_bytes(described: Mapping[str, Any], where: str) -> bool:
    """Tell if tokens are spelt in byte-level characters; False for SentencePiece's. Raises Unsupported for others."""
    decoder = described.get("decoder") or {}
    kinds = {str(part.get("type")) for part in (decoder, *decoder.get("decoders", ()))}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"Metaspace", "ByteFallback"}:
        return False
    raise Unsupported(
        f"opening the model {where}: its tokenizer's decoder ({', '.join(sorted(kinds))}) is not known",
        hint="use a GGUF of it",
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template: a file of its own, or one of those in tokenizer_config.json."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text("utf-8", "replace")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(entry.get("name")): entry.get("template") for entry in found if isinstance(entry, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None
