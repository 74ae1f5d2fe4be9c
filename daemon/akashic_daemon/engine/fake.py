"""A deterministic engine without a model, for tests: it checks the contract and remembers who holds what.

A token is a UTF-8 byte; 256 ends a turn, 257/258 are the ChatML marks. The next token is a hash of every (token,
position) that the last token sees, so any wrong reuse, leak or loss changes the output.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from akashic_daemon.engine.base import BatchItem, Capabilities, ModelInfo, SamplingParams
from akashic_daemon.errors import EngineError
from akashic_daemon.types import SequenceId

END = 256
_MARKS = {"<|im_end|>": 256, "<|im_start|>": 257}
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class FakeSampler:
    """Takes the engine's hash as the next token; every `end_every`-th value ends the turn."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    def sample(self, item: int) -> int:
        """Return the token that the visible cells determine."""
        return self._engine.next_token(item)

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: there are no penalties."""

    def close(self) -> None:
        """Do nothing."""


class FakeEngine:
    """Cells are dictionaries position -> token, one a sequence; a shared cell is one object."""

    def __init__(
        self, *, kv_cells: int = 4096, max_sequences: int = 16, window_tokens: int = 1024, end_every: int = 29
    ) -> None:
        self.cells: list[dict[int, _Cell]] = [{} for _ in range(max_sequences)]
        self.computed: list[int] = []
        """Token counts of each decode, for assertions."""
        self.fail_next = 0
        self._kv_cells = kv_cells
        self._window = window_tokens
        self._end_every = end_every
        self._last: list[int] = []

    @property
    def capabilities(self) -> Capabilities:
        """Everything but what needs a real model."""
        return Capabilities(len(self.cells), self._kv_cells, drop=True, repos=False, tail_gap=True, range_export=False)

    @property
    def model(self) -> ModelInfo:
        """A byte-level vocabulary with ChatML."""
        return ModelInfo(
            name="fake", path="", description="fake", architecture="fake", parameters_count=0, size_bytes=0,
            kv_bytes_per_token=1, kv_bytes=self._kv_cells, vocabulary_size=258, trained_window_tokens=self._window,
            window_tokens=self._window, chat_template=_CHATML, bos="", eos="<|im_end|>", add_bos=False, fingerprint="fake",
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """One."""
        return 1

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return bytes, and the ChatML marks when `special`."""
        out: list[int] = []
        while text:
            mark = next((m for m in _MARKS if special and text.startswith(m)), None)
            if mark:
                out.append(_MARKS[mark])
                text = text[len(mark) :]
            else:
                out.extend(text[0].encode("utf-8", "replace"))
                text = text[1:]
        return out

    def token_bytes(self, token: int) -> bytes:
        """Return the byte; marks print nothing."""
        return bytes([token]) if token < END else b""

    def is_end(self, token: int) -> bool:
        """Tell if it is the end mark."""
        return token == END

    def used_cells(self) -> int:
        """Return the number of distinct cells."""
        return len({id(c) for s in self.cells for c in s.values()})

    def decode(self, batch: Sequence[BatchItem]) -> None:
        """Add the cells; raises EngineError when they don't fit or a test asked for it."""
        tokens = sum(len(i.tokens) for i in batch)
        if self.fail_next:
            self.fail_next -= 1
            raise EngineError("the fake engine was told to fail")
        if self.used_cells() + tokens > self._kv_cells:
            raise EngineError("no KV cell is free")
        for item in batch:
            held = self.cells[item.sequence]
            if held and item.start != max(held) + 1:
                raise EngineError(f"sequence {item.sequence} ends at {max(held)}, the batch starts at {item.start}")
        self._last = []
        for item in batch:
            held = self.cells[item.sequence]
            for offset, token in enumerate(item.tokens):
                held[item.start + offset] = _Cell(token)
            seen = b"".join(struct.pack("<ii", p, held[p].token) for p in sorted(held))
            self._last.append(int.from_bytes(hashlib.blake2b(seen, digest_size=4).digest(), "little"))
        self.computed.append(tokens)

    def next_token(self, item: int) -> int:
        """Return a letter, or the end mark now and then."""
        value = self._last[item]
        return END if value % self._end_every == 0 else 97 + value % 26

    def sampler(self, params: SamplingParams) -> FakeSampler:
        """Return the deterministic sampler."""
        return FakeSampler(self)

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Share cells."""
        for position, cell in self.cells[source].items():
            if start <= position < end:
                self.cells[target][position] = cell

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let go of cells."""
        held = self.cells[sequence]
        for position in [p for p in held if p >= start and (end < 0 or p < end)]:
            del held[position]

    def position_range(self, sequence: SequenceId) -> tuple[int, int] | None:
        """Return the lowest and highest position."""
        held = self.cells[sequence]
        return (min(held), max(held)) if held else None

    def close(self) -> None:
        """Forget everything."""
        self.cells = []


class _Cell:
    """One KV cell; identity matters."""

    __slots__ = ("token",)

    def __init__(self, token: int) -> None:
        self.token = token
