"""Text to token ids and back: what an engine that doesn't bring its own tokenizer is given."""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    """A model's tokenizer with its control tokens and chat template. Any thread may use it."""

    @property
    def size(self) -> int:
        """How many ids there are."""

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja template."""

    @property
    def bos(self) -> str:
        """Text of the token that begins a text; empty when there is none."""

    @property
    def eos(self) -> str:
        """Text of the token that ends a text; empty when there is none."""

    @property
    def add_bos(self) -> bool:
        """Whether prompts begin with `bos`."""

    @property
    def digest(self) -> str:
        """What changes when text would become other tokens, for a fingerprint; empty when the weights' file says it."""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of `text`; `special` recognises control tokens. Never adds BOS or EOS."""

    def token_bytes(self, token: int) -> bytes:
        """Return what a token prints; control tokens print nothing."""

    def is_end(self, token: int) -> bool:
        """Tell if a token ends a turn."""

    def close(self) -> None:
        """Free what it holds. Calling it twice does nothing."""
