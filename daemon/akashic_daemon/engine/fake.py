"""A deterministic engine without a model, for tests: it checks the contract and remembers who holds what.

A token is a UTF-8 byte; 256 ends a turn, 257/258 are the ChatML marks. A cell's *content* stands for its KV: a hash of its
token, its position and the (content, position) of every cell that it saw when it was computed. The next token is the
last content, so any wrong reuse, leak, loss or wrong operation changes the output.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence

from akashic_daemon.engine.base import (
    STORAGES,
    BatchItem,
    Capabilities,
    ModelInfo,
    PackedRun,
    SamplingParams,
    SavedCells,
)
from akashic_daemon.engine.packed import HEAD_BYTES, Head, odd, read_head
from akashic_daemon.errors import EngineError, Unsupported
from akashic_daemon.program import oracle
from akashic_daemon.program.path import Path
from akashic_daemon.types import SequenceId

END = 256
_KV_TYPE = "fake"
_PACKED = struct.Struct("<iq")
"""An exported cell: token, content."""
_MARKS = {"<|im_end|>": 256, "<|im_start|>": 257}
_MARK = re.compile("(" + "|".join(map(re.escape, _MARKS)) + ")")
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class FakeSampler:
    """Takes the engine's hash as the next token; every `end_every`-th value ends the turn. A script is said instead."""

    def __init__(self, engine: FakeEngine, script: str | None = None) -> None:
        self._engine = engine
        self._script = None if script is None else iter([*engine.tokenize(script, special=True), END])

    def sample(self, item: int) -> int:
        """Return the token that the visible cells determine, or the script's next."""
        return self._engine.next_token(item) if self._script is None else next(self._script)

    def accept(self, tokens: Sequence[int]) -> None:
        """Do nothing: there are no penalties."""

    def close(self) -> None:
        """Do nothing."""


class FakeEngine:
    """Cells are dictionaries position -> token, one a sequence; a shared cell is one object."""

    def __init__(
        self,
        *,
        kv_cells: int = 4096,
        max_sequences: int = 16,
        window_tokens: int = 1024,
        end_every: int = 29,
        fingerprint: str = "fake",
        template: str = _CHATML,
        grammar: bool = True,
    ) -> None:
        self.cells: list[dict[int, _Cell]] = [{} for _ in range(max_sequences)]
        self.computed: list[int] = []
        """Token counts of each decode, for assertions."""
        self.fail_next = 0
        self.scripts: list[str] = []
        """What the next answers say, one each; then it goes on by itself."""
        self.sampled_with: list[SamplingParams] = []
        """What samplers were asked for, for assertions."""
        self._kv_cells = kv_cells
        self._window = window_tokens
        self._end_every = end_every
        self._fingerprint = fingerprint
        self._template = template
        self._grammar = grammar
        """Whether it says that it holds answers to a grammar; what a script says is the test's affair."""
        self._last: list[int] = []

    @property
    def capabilities(self) -> Capabilities:
        """Everything but what needs a real model."""
        cells = self._kv_cells
        return Capabilities(
            len(self.cells), cells, drop=True, repos=True, tail_gap=True, range_export=True, grammar=self._grammar
        )

    @property
    def model(self) -> ModelInfo:
        """A byte-level vocabulary with ChatML."""
        return ModelInfo(
            name="fake", path="", description="fake", architecture="fake", parameters_count=0, size_bytes=0,
            kv_bytes_per_token=1, kv_bytes=self._kv_cells, vocabulary_size=258, trained_window_tokens=self._window,
            window_tokens=self._window, chat_template=self._template, bos="", eos="<|im_end|>", add_bos=False, fingerprint=self._fingerprint,
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """One."""
        return 1

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return bytes, and the ChatML marks when `special`."""
        out: list[int] = []
        for part in _MARK.split(text) if special else [text]:
            out.extend([_MARKS[part]] if special and part in _MARKS else part.encode("utf-8", "replace"))
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
            if held and item.start <= max(held):
                raise EngineError(f"sequence {item.sequence} ends at {max(held)}, the batch starts at {item.start}")
        self._last = []
        for item in batch:
            held = self.cells[item.sequence]
            content = 0
            for offset, token in enumerate(item.tokens):
                position = item.start + offset
                content = content_of(token, position, [(held[p].content, p) for p in held])
                held[position] = _Cell(token, content)
            self._last.append(content)
        self.computed.append(tokens)

    def last_content(self, item: int) -> int:
        """Return the content of the last token of a batch item, for assertions."""
        return self._last[item]

    def next_token(self, item: int) -> int:
        """Return a letter, or the end mark now and then."""
        value = self._last[item]
        return END if value % self._end_every == 0 else 97 + value % 26

    def sampler(self, params: SamplingParams) -> FakeSampler:
        """Return the deterministic sampler, or one that says the next script."""
        self.sampled_with.append(params)
        return FakeSampler(self, self.scripts.pop(0) if self.scripts else None)

    def share(self, source: SequenceId, target: SequenceId, start: int, end: int) -> None:
        """Share cells."""
        for position, cell in list(self.cells[source].items()):
            if start <= position < end:
                if self.cells[target].get(position, cell) is not cell:
                    raise EngineError(f"sequence {target} holds another cell at position {position}")
                self.cells[target][position] = cell

    def release(self, sequence: SequenceId, start: int = 0, end: int = -1) -> None:
        """Let go of cells."""
        held = self.cells[sequence]
        for position in [p for p in held if p >= start and (end < 0 or p < end)]:
            del held[position]

    def save(self, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> FakeCells:
        """Copy out cells, which must be there."""
        held = self.cells[sequence]
        return FakeCells([_Cell(held[p].token, held[p].content) for start, end in ranges for p in range(start, end)])

    def load(self, saved: SavedCells, sequence: SequenceId, ranges: Sequence[tuple[int, int]]) -> None:
        """Add copies of saved cells at these positions."""
        assert isinstance(saved, FakeCells)
        positions = [p for start, end in ranges for p in range(start, end)]
        held = self.cells[sequence]
        if self.used_cells() + len(saved.cells) > self._kv_cells:
            raise EngineError("no KV cell is free")
        for position, cell in zip(positions, saved.cells, strict=True):
            if position in held:
                raise EngineError(f"sequence {sequence} holds position {position} already")
            held[position] = _Cell(cell.token, cell.content)

    def export_bytes(self, tokens: int, storage: str) -> int:
        """Return the bytes of so many tokens and contents."""
        if storage not in STORAGES:
            raise Unsupported(f"storing KV as {storage!r}: the fake engine knows {', '.join(STORAGES)}")
        return HEAD_BYTES + tokens * _PACKED.size

    def export_cells(self, sequence: SequenceId, start: int, end: int, into: memoryview, storage: str) -> int:
        """Write tokens and contents; every storage loses nothing here."""
        needed = self.export_bytes(end - start, storage)
        held = self.cells[sequence]
        if into.nbytes < needed:
            raise EngineError(f"exporting {end - start} cells takes {needed:,} bytes; {into.nbytes:,} are there")
        if missing := [p for p in range(start, end) if p not in held]:
            raise EngineError(f"exporting {end - start} cells: sequence {sequence} holds no position {missing[0]}")
        for number, position in enumerate(range(start, end)):
            cell = held[position]
            _PACKED.pack_into(into, HEAD_BYTES + number * _PACKED.size, cell.token, cell.content)
        return Head(storage, _KV_TYPE, end - start, start, needed - HEAD_BYTES).write(into)

    def import_cells(self, data: memoryview, sequence: SequenceId, start: int, end: int) -> None:
        """Add the cells in `data` at these positions; their contents stay, as with `load`."""
        self.import_runs([PackedRun(data, start, end)], sequence)

    def import_runs(self, runs: Sequence[PackedRun], sequence: SequenceId) -> None:
        """Add the cells of all runs, or none."""
        saved, held = FakeCells([]), set(self.cells[sequence])
        for run in runs:
            head = read_head(run.data, _KV_TYPE, run.end - run.start)
            if head.payload_bytes != head.cells * _PACKED.size:
                raise odd(f"{head.payload_bytes} bytes can't be {head.cells} cells")
            saved.cells += [_Cell(*found) for found in _PACKED.iter_unpack(run.data[HEAD_BYTES:])]
            wanted = set(range(run.start, run.end))
            if taken := held & wanted:
                raise EngineError(f"sequence {sequence} holds position {min(taken)} already")
            held |= wanted
        self.load(saved, sequence, [(run.start, run.end) for run in runs])

    def position_range(self, sequence: SequenceId) -> tuple[int, int] | None:
        """Return the lowest and highest position."""
        held = self.cells[sequence]
        return (min(held), max(held)) if held else None

    def close(self) -> None:
        """Forget everything."""
        self.cells = []


class _Cell:
    """One KV cell; identity matters."""

    __slots__ = ("content", "token")

    def __init__(self, token: int, content: int) -> None:
        self.token = token
        self.content = content


class FakeCells:
    """Saved cells."""

    def __init__(self, cells: list[_Cell]) -> None:
        self.cells = cells

    @property
    def nbytes(self) -> int:
        """A byte a cell, as the model says."""
        return len(self.cells)


def content_of(token: int, position: int, seen: Sequence[tuple[int, int]]) -> int:
    """Return what stands for the KV of a token that sees these (content, position) pairs before it."""
    packed = b"".join(struct.pack("<qi", c, p) for c, p in sorted(seen, key=lambda pair: pair[1]))
    digest = hashlib.blake2b(struct.pack("<ii", token, position) + packed, digest_size=7).digest()
    return int.from_bytes(digest, "little")


def contents(path: Path) -> list[int]:
    """Return the contents that the naive twin gives the tokens of a path: what this engine must compute."""
    out: list[int] = []
    for index, view in enumerate(oracle.run(path).views):
        seen = [(out[i], p) for i, p in view.sees.items() if i != index]
        out.append(content_of(path.tokens[index], view.position, seen))
    return out
