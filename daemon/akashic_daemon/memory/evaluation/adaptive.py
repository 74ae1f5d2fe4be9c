"""One budget for all chunks against the same share for each, at equal actual rho: what adapting to density is worth.

All methods keep the same clauses' text, by the same worth; they differ in which budget a clause competes for. "fixed" gives
every chunk the same share of its own length: chunks of eight turns, or of the gate's length, or of the gate's length with
each told from itself alone, as systems do that summarise pieces one by one. A fixed share leaves crumbs of its room unused,
so it is raised until as much is left as of the adaptive one's, over all conversations together.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.evaluation.compaction import (
    FIXED_TURNS,
    KEPT_SHARE,
    Idf,
    Texts,
    answer_words,
    chars_of,
    chunks_of,
    filling,
    idf_of,
    left_of_turns,
    shares_of,
)
from akashic_daemon.memory.evaluation.corpus import Conversation
from akashic_daemon.memory.extract import Spoken, Weighed, Worths, extract, weigh
from akashic_daemon.memory.memory import Memory, Said

TARGET_POINTS = 4.0
"""Percentage points of evidence turns that adapting is to keep more, at equal actual rho."""
SHARES = (0.25, 0.35, 0.495, 0.75)
_HALVINGS = 12


@dataclass(frozen=True, slots=True)
class _Chunk:
    turns: list[Spoken]
    weighed: list[Weighed]


@dataclass(frozen=True, slots=True)
class _Talk:
    """A conversation, and its clauses weighed as each method's chunks have them."""

    conversation: Conversation
    said: list[Said]
    spoken: list[Spoken]
    idf: Idf
    chunks: dict[str, list[_Chunk]]


def run(conversations: Sequence[Conversation], _memory: Memory, _embedder: Embedder) -> dict[str, Any]:
    """Return, for each share asked for, what the methods keep at the adaptive one's actual rho."""
    talks = [_talk(conversation) for conversation in conversations]
    rows = []
    for share in SHARES:
        kept = [_adaptive(talk, share) for talk in talks]
        rho = _rho(talks, kept)
        methods = {"adaptive": _figures(talks, kept)}
        methods |= {f"fixed: {name}": _figures(talks, _at(talks, name, rho)) for name in _CHUNKS}
        rows.append({"rho": round(rho, 4), "methods": methods})
    return {"target_points": TARGET_POINTS, "rows": rows}


def _talk(conversation: Conversation) -> _Talk:
    said = [turn for _, turns in conversation.sessions for turn in turns]
    spoken = [Spoken(turn.speaker, turn.text) for turn in said]
    idf = idf_of(spoken)
    return _Talk(conversation, said, spoken, idf, {name: make(spoken, idf) for name, make in _CHUNKS.items()})


def _adaptive(talk: _Talk, share: float) -> Texts:
    weighed = weigh(talk.spoken, talk.idf, Counter())
    worths = Worths(share)
    worths.add(weighed, chars_of(talk.spoken))
    return list(extract(talk.spoken, weighed, worths.cutoff()).texts)


def _fixed(talk: _Talk, name: str, share: float) -> Texts:
    texts = Texts()
    for chunk in talk.chunks[name]:
        texts += extract(chunk.turns, filling(chunk.weighed, share * chars_of(chunk.turns)), 0.0).texts
    return texts


def _at(talks: Sequence[_Talk], name: str, rho: float) -> list[Texts]:
    """Return what a fixed share leaves that is as large as needed for an actual rho."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        if _rho(talks, [_fixed(talk, name, share) for talk in talks]) < rho:
            low = share
        else:
            high = share
    return [_fixed(talk, name, high) for talk in talks]


def _rho(talks: Sequence[_Talk], texts: Sequence[Texts]) -> float:
    left = sum(left_of_turns(talk.spoken, of_talk) for talk, of_talk in zip(talks, texts, strict=True))
    return left / sum(chars_of(talk.spoken) for talk in talks)


def _figures(talks: Sequence[_Talk], texts: Sequence[Texts]) -> dict[str, float | None]:
    kept: list[float] = []
    answered: list[float] = []
    for talk, of_talk in zip(talks, texts, strict=True):
        references = [turn.reference for turn in talk.said]
        share_of = dict(zip(references, shares_of(talk.spoken, of_talk, talk.idf), strict=True))
        whole_of = dict(zip(references, (turn.text for turn in talk.spoken), strict=True))
        left_of = dict(zip(references, of_talk, strict=True))
        for question in talk.conversation.questions:
            kept.append(statistics.fmean(share_of[reference] >= KEPT_SHARE for reference in question.evidence))
            answered += answer_words(question, whole_of, left_of)
    return {
        "rho": round(_rho(talks, texts), 4),
        "evidence_kept": round(statistics.fmean(kept), 4),
        "answer_words": round(statistics.fmean(answered), 4) if answered else None,
    }


def _eights(turns: list[Spoken], idf: Idf) -> list[_Chunk]:
    seen = Counter[str]()
    parts = [turns[first : first + FIXED_TURNS] for first in range(0, len(turns), FIXED_TURNS)]
    return [_Chunk(part, weigh(part, idf, seen)) for part in parts]


def _gates(turns: list[Spoken], idf: Idf) -> list[_Chunk]:
    seen = Counter[str]()
    return [_Chunk(part, weigh(part, idf, seen)) for part in chunks_of(turns)]


def _alone(turns: list[Spoken], _idf: Idf) -> list[_Chunk]:
    return [_Chunk(part, weigh(part, idf_of(part), Counter())) for part in chunks_of(turns)]


_CHUNKS: dict[str, Callable[[list[Spoken], Idf], list[_Chunk]]] = {
    "8 turns": _eights,
    "1,024 tokens": _gates,
    "1,024 tokens, each alone": _alone,
}
