"""Long-term memory as an object: turns go in, spans that fit a question come out. Used on the memory store's thread.

The store is the truth. Indexes are read from it when a namespace is first used, and follow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from akashic_daemon.errors import NotFound
from akashic_daemon.memory import candidates, scoring, times, traits, words
from akashic_daemon.memory.embedder import Embedder
from akashic_daemon.memory.extents import ChunkExtents
from akashic_daemon.memory.index import NamespaceIndex
from akashic_daemon.memory.meaning import TokenWeights
from akashic_daemon.memory.retold import retold
from akashic_daemon.store.memory.rows import Added, Forgotten, IndexRow, NewTurn, Turn, storable
from akashic_daemon.store.memory.store import MemoryStore

LONGEST_TURN = 4096
"""Characters of a turn: about 1,000 tokens, so that what is found can fit a budget."""

_EMBED_BATCH = 1024
_NAME = re.compile(r"[^\W\d_]{3,}")
_FIRST_PERSON = re.compile(r"\b(I|my|me|mine)\b")


@dataclass(frozen=True, slots=True)
class Said:
    """A message to remember. `reference` names it in its source."""

    speaker: str
    text: str
    reference: str
    event_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A turn that fits a question, how well, and what of that comes from each feature (`scoring.FEATURES`)."""

    turn: Turn
    score: float
    parts: dict[str, float]


class Memory:
    """All namespaces of a store."""

    def __init__(self, store: MemoryStore, embedder: Embedder) -> None:
        self.store = store
        self._embedder = embedder
        self.extents: ChunkExtents | None = None
        """Where sealed chunks stand whole, if there is such a place."""
        self._indexes: dict[str, NamespaceIndex] = {}
        self._weights: dict[str, TokenWeights] = {}

    def add(self, namespace: str, source: str, said: Sequence[Said]) -> Added:
        """Remember messages of one source in the order they were said. Adding them again changes nothing.

        A message of over LONGEST_TURN characters becomes several turns, each a part of it: together they are its text,
        and any of them can be found. The later ones have its reference with `#2`, `#3`, … after it.
        """
        new = [_new_turn(part) for message in said for part in _parts_of(message)]
        added = self.store.add_turns(namespace, source, new)
        if added.new_ids:
            # Of what was said several times, or nearly so, the first is what was stored.
            texts = {
                turn_id: storable(turn.text) for turn_id, turn in zip(added.turn_ids[::-1], new[::-1], strict=True)
            }
            self._follow(namespace, {turn_id: texts[turn_id] for turn_id in added.new_ids})
        return added

    def search(
        self, namespaces: Sequence[str], question: str, *, limit: int = 20, asked_at_s: float | None = None
    ) -> list[Span]:
        """Return the turns that fit a question best, of all the namespaces, the best first.

        asked_at_s: what was said later isn't found, and "last week" and the like count from then; by default from each
        namespace's newest turn.
        """
        found: list[tuple[float, int, dict[str, float]]] = []
        for namespace in namespaces:
            found += self._ranked(namespace, question, limit, asked_at_s)
        found.sort(key=lambda hit: (-hit[0], hit[1]))
        turns = self.store.turns([turn_id for _, turn_id, _ in found[:limit]])
        return [Span(turns[turn_id], score, parts) for score, turn_id, parts in found[:limit] if turn_id in turns]

    def plan_forgetting(self, turn_ids: Iterable[int]) -> Forgotten:
        """Return what `forget` would remove, and remove nothing."""
        ids = list(turn_ids)
        return self.store.plan_forgetting(ids, retold(self.store, self.store.turns(ids).values()))

    def forget(self, turn_ids: Iterable[int]) -> Forgotten:
        """Remove turns with all that was derived from them, from the store and from every index."""
        ids = list(turn_ids)
        turns = self.store.turns(ids)
        touched = {turn.namespace for turn in turns.values()}
        told = retold(self.store, turns.values())
        if self.extents is not None:
            gone = self.store.plan_forgetting(ids, told)
            # First of all: a crash in between leaves a chunk without its copy, not a copy without its chunk.
            for namespace in touched:
                self.extents.drop(namespace, (*gone.changed_chunk_ids, *gone.emptied_chunk_ids))
        for namespace in touched:
            texts = [turn.text for turn in turns.values() if turn.namespace == namespace]
            self._uncount(namespace, texts)
        try:
            return self.store.forget(ids, told)
        finally:
            for namespace in touched:
                self._drop_index(namespace)

    @property
    def index_bytes(self) -> int:
        """What the indexes that are in RAM take."""
        return sum(index.size_bytes for index in self._indexes.values())

    def index(self, namespace: str) -> NamespaceIndex:
        """Return a namespace's index, up to date with the store. Raises NotFound."""
        if namespace not in self._indexes:
            self._follow(namespace)
        return self._indexes[namespace]

    def query(self, namespace: str, question: str, asked_at_s: float | None = None) -> scoring.Query:
        """Return a question as the namespace's index sees it."""
        index = self.index(namespace)
        wanted = list(dict.fromkeys(words.terms(question)))
        known = self.store.term_ids(namespace, wanted)
        (vector,) = self._weights[namespace].embed(self._embedder.token_ids([question]))
        now_s = index.newest_event_at_s if asked_at_s is None else asked_at_s
        return scoring.Query(
            tuple(known.values()),
            len(wanted) - len(known),
            vector,
            _named(question, index.speakers),
            traits.asks_when(question),
            () if now_s is None else times.spans(question, now_s),
        )

    def _ranked(
        self, namespace: str, question: str, limit: int, asked_at_s: float | None
    ) -> list[tuple[float, int, dict[str, float]]]:
        try:
            index = self.index(namespace)
        except NotFound:
            return []
        query = self.query(namespace, question, asked_at_s)
        rows = candidates.find(index, query, max(candidates.CLOSE_LOOKS, limit))
        if asked_at_s is not None:
            rows = rows[~(index.event_at_s[rows] > asked_at_s)]  # without a known time it may have been said before
        parts = scoring.features(index, query, rows) * scoring.WEIGHTS
        scores = parts.sum(axis=1)
        best = np.argsort(-scores, kind="stable")[:limit]
        return [
            (
                float(scores[i]),
                int(index.turn_ids[rows[i]]),
                {name: float(part) for name, part in zip(scoring.FEATURES, parts[i], strict=True)},
            )
            for i in best
        ]

    def _follow(self, namespace: str, texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """Bring the index up to date, or drop it when that fails: what lacks turns would pass for one that has all.

        texts: of turns, so that these aren't read again.
        """
        try:
            self._read_on(namespace, texts)
        except BaseException:
            self._drop_index(namespace)
            raise

    def _drop_index(self, namespace: str) -> None:
        self._indexes.pop(namespace, None)
        self._weights.pop(namespace, None)

    def _read_on(self, namespace: str, texts: Mapping[int, str]) -> None:
        """Append new turns; embed what has no vector yet, and everything when the weights are stale."""
        name = self._embedder.name
        index = self._indexes.setdefault(namespace, NamespaceIndex(self._embedder.dimensions))
        if namespace not in self._weights:
            self._weights[namespace] = TokenWeights(self._embedder, self.store.embedder_state(namespace, name))
        weights = self._weights[namespace]
        rows = self.store.index_rows(namespace, name, after_id=index.last_turn_id)
        if weights.counted_id is None:
            weights.counted_id = rows[-1].turn_id if rows else 0
        for start in range(0, len(rows), _EMBED_BATCH):
            batch = rows[start : start + _EMBED_BATCH]
            self._recount(weights, batch)
            missing = [row.turn_id for row in batch if row.vector is None]
            if missing:
                made = self._embed(weights, missing, are_new=True, texts=texts)
                bodies = dict(zip(missing, (body.tobytes() for body in made.astype("<f2")), strict=True))
                weights.counted_id = max(weights.counted_id, batch[-1].turn_id)
                self.store.put_vectors(name, bodies.items(), weights.state(namespace) if weights.is_to_keep else None)
                batch = [replace(row, vector=bodies.get(row.turn_id, row.vector)) for row in batch]
            vectors = np.stack([np.frombuffer(row.vector or b"", "<f2") for row in batch]).astype(np.float32)
            index.append(batch, vectors)
        if rows and weights.is_stale:
            self._embed_anew(namespace, index, weights)

    def _recount(self, weights: TokenWeights, rows: Sequence[IndexRow]) -> None:
        """Count the turns that have vectors, but came after the counts were kept last."""
        assert weights.counted_id is not None
        ids = [row.turn_id for row in rows if row.vector is not None and row.turn_id > weights.counted_id]
        if ids:
            turns = self.store.turns(ids)
            weights.count(self._embedder.token_ids([turns[turn_id].text for turn_id in ids]))
            weights.counted_id = ids[-1]

    def _uncount(self, namespace: str, texts: Sequence[str]) -> None:
        """Let the token counts know nothing of texts that go; which words were said can be read from counts."""
        self.index(namespace)
        weights = self._weights[namespace]
        weights.uncount(self._embedder.token_ids(texts))
        self.store.put_vectors(self._embedder.name, [], weights.state(namespace))

    def _embed(
        self,
        weights: TokenWeights,
        turn_ids: Sequence[int],
        *,
        are_new: bool,
        texts: Mapping[int, str] = MappingProxyType({}),
    ) -> scoring.Scores:
        turns = self.store.turns([turn_id for turn_id in turn_ids if turn_id not in texts])
        read = [texts[turn_id] if turn_id in texts else turns[turn_id].text for turn_id in turn_ids]
        tokens = self._embedder.token_ids(read)
        if are_new:
            weights.count(tokens)
        return weights.embed(tokens)

    def _embed_anew(self, namespace: str, index: NamespaceIndex, weights: TokenWeights) -> None:
        for start in range(0, len(index), _EMBED_BATCH):
            ids = index.turn_ids[start : start + _EMBED_BATCH].tolist()
            vectors = self._embed(weights, ids, are_new=False).astype("<f2")
            index.put_vectors(start, vectors.astype(np.float32))
            bodies = [vector.tobytes() for vector in vectors]
            self.store.put_vectors(self._embedder.name, zip(ids, bodies, strict=True))
        weights.embedded_turns = len(index)
        self.store.put_vectors(self._embedder.name, [], weights.state(namespace))


def length_tokens(text: str) -> int:
    """Return about how many tokens a text is, at least 1: budgets are told without any model's tokenizer."""
    return max(1, len(text.encode("utf-8", "surrogatepass")) // 4)


def _parts_of(said: Said) -> list[Said]:
    """Cut a long message behind lines, else behind words, else anywhere."""
    if len(said.text) <= LONGEST_TURN:
        return [said]
    text, parts = said.text, list[str]()
    start = 0
    while len(text) - start > LONGEST_TURN:
        end = start + LONGEST_TURN
        # Not before the middle: a text of few breaks would fall into crumbs.
        breaks = (text.rfind(mark, start + LONGEST_TURN // 2, end) + 1 for mark in ("\n", " "))
        cut = next((at for at in breaks if at > 0), end)
        parts.append(text[start:cut])
        start = cut
    parts.append(text[start:])
    names = [said.reference, *(f"{said.reference}#{number}" for number in range(2, len(parts) + 1))]
    return [replace(said, text=part, reference=name) for part, name in zip(parts, names, strict=True)]


def _new_turn(said: Said) -> NewTurn:
    tokens = length_tokens(said.text)
    terms = tuple(words.terms(said.text))
    return NewTurn(said.speaker, said.text, said.reference, said.event_at_s, tokens, terms, traits.of(said.text))


def _named(question: str, speakers: dict[str, int]) -> frozenset[int]:
    """Return whom a question names, by a name or its beginning; "I" is the user. Several are as good as none."""
    asked = {word.casefold() for word in _NAME.findall(question)}
    found = {
        number
        for name, number in speakers.items()
        if any(
            part == word or (len(word) < len(part) and part.startswith(word)) for part in _parts(name) for word in asked
        )
    }
    if not found and "user" in speakers and _FIRST_PERSON.search(question):
        found = {speakers["user"]}
    return frozenset(found if len(found) == 1 else ())


def _parts(name: str) -> list[str]:
    return [part.casefold() for part in _NAME.findall(name)]
