"""Walks a path over llama.cpp's bare calls, in the ways that the engine relies on: the proof that these ways are exact.

Sequence 0 holds the active cache; 1 to 3 are scratch and empty between steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from akashic_daemon.engine.llama_cpp.rope import Rope
from akashic_daemon.program.active import ActiveCache
from akashic_daemon.program.path import Drop, Move, Op, Path
from llama_lowlevel import Bare, Logits

MAIN, SCRATCH, KEPT, RELABELLED = 0, 1, 2, 3


def relabel_last(bare: Bare, sequence: int, position: int) -> int:
    """Let the last cell of `sequence` say that it stands before `position`; KEPT holds it as it was. Return its position."""
    last = bare.end(sequence)
    bare.copy(sequence, KEPT, last)
    blob = bare.save(KEPT)
    bare.parse(blob).relabel(0, position - 1)
    bare.load(RELABELLED, blob)
    bare.remove(sequence, last)
    bare.copy(RELABELLED, sequence)
    bare.remove(RELABELLED)
    return last


def restore_last(bare: Bare, sequence: int, position: int) -> None:
    """Undo `relabel_last` after tokens were computed at `position` on."""
    bare.remove(sequence, position - 1, position)
    bare.copy(KEPT, sequence)
    bare.remove(KEPT)


def decode_at(bare: Bare, sequence: int, tokens: list[int], position: int) -> Logits:
    """Compute `tokens` at `position`, also when the sequence ends before it."""
    gap = 0 <= bare.end(sequence) < position - 1
    if gap:
        relabel_last(bare, sequence, position)
    found = bare.decode(sequence, tokens, position)
    if gap:
        restore_last(bare, sequence, position)
    return found


def renumber(bare: Bare, sequence: int, moves: dict[int, int], rope: Rope) -> None:
    """Move the cells of `sequence` from position to position, through a blob that we turn."""
    if bare.end(sequence) < 0:
        return
    blob = bare.save(sequence)
    parsed = bare.parse(blob)
    parsed.reposition(np.array([moves[p] for p in parsed.positions().tolist()], np.int32), rope)
    bare.load(sequence, blob)


def walk(bare: Bare, path: Path) -> npt.NDArray[np.float32]:
    """Compute the path from nothing; return each token's logits. Leaves the active cache in sequence 0."""
    rope = bare.rope()
    assert not isinstance(rope, str), rope
    state, out = ActiveCache(), []
    for step in path.steps():
        if isinstance(step, Op):
            after = state.apply(step)
            if isinstance(step, Drop):
                _drop(bare, state, after)
            elif isinstance(step, Move):
                renumber(bare, MAIN, _moves(state, after), rope)
            state = after
            continue
        tokens = step.tolist()
        while tokens:
            part = tokens[: state.inserting or len(tokens)]
            out.append(_insert(bare, part, state.position) if state.inserting else _append(bare, part, state.position))
            state, tokens = state.append(len(part)), tokens[len(part) :]
    return np.concatenate(out)


def _append(bare: Bare, tokens: list[int], position: int) -> Logits:
    return decode_at(bare, MAIN, tokens, position)


def _insert(bare: Bare, tokens: list[int], position: int) -> Logits:
    bare.copy(MAIN, SCRATCH, 0, position)
    found = decode_at(bare, SCRATCH, tokens, position)
    bare.copy(SCRATCH, MAIN, position)
    bare.remove(SCRATCH)
    return found


def _positions(state: ActiveCache) -> dict[int, int]:
    return {s.first + i: s.position + i for s in state.spans for i in range(s.length)}


def _drop(bare: Bare, before: ActiveCache, after: ActiveCache) -> None:
    left = _positions(after)
    for index, position in _positions(before).items():
        if index not in left:
            bare.remove(MAIN, position, position + 1)


def _moves(before: ActiveCache, after: ActiveCache) -> dict[int, int]:
    new = _positions(after)
    return {position: new[index] for index, position in _positions(before).items()}
