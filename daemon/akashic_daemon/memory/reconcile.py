"""Reconciling a sealed chunk with what the namespace knows: related chunks, compacted text, statements and how they stand.

`prepare` reads, and computes what needs no model; `store` keeps the outcome in one transaction. In between a model may be
asked. Nothing here grows with the history: related chunks are at most five, statements of a slot at most some dozens.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from akashic_daemon.errors import NotFound
from akashic_daemon.memory import extract
from akashic_daemon.memory.chunks import Idf, idf_of
from akashic_daemon.memory.density import kind_of
from akashic_daemon.memory.extract import Extract, Spoken, Weighed, Worths
from akashic_daemon.memory.memory import Memory
from akashic_daemon.memory.reads import file_reads
from akashic_daemon.memory.repeats import LineIndex, superseded, superseded_note
from akashic_daemon.memory.retold import EXTRACTIVE
from akashic_daemon.memory.statements import Statement, judge, statements
from akashic_daemon.memory.words import terms
from akashic_daemon.store.memory.rows import Chunk, NewRecord, NewRelation, Record, Turn

MOST_RELATED = 5
RHO = 0.495
"""Share of prose that is kept; asked for a little below a half, so that the actual one is."""
_KEYWORDS = 24
_HITS = 64
_SLOT_RECORDS = 16
_WORD = re.compile(r"[^\W_]{2,}")


@dataclass(frozen=True, slots=True)
class Related:
    """An earlier chunk that is about the same; its newest text, or its turns'."""

    chunk_id: int
    weight: float
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a chunk becomes. tokens: what models read and wrote for it."""

    text: str
    rho: float
    records: tuple[NewRecord, ...]
    made_by: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a compactor's answer doesn't count, and what it cost."""

    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk that is being reconciled, with all that a compactor needs, and what comes out without a model.

    prose_share: of its characters. clauses: of the prose, each with the number of its turn among `turns`. dense: what is
    left of the other turns, by the same numbers. room_chars: what the clauses that were kept without a model cost.
    state: what compaction will keep of the namespace.
    """

    chunk: Chunk
    turns: tuple[Turn, ...]
    related: tuple[Related, ...]
    prose_share: float
    clauses: tuple[Weighed, ...]
    dense: Mapping[int, str]
    room_chars: int
    extractive: Outcome
    state: str

    @property
    def pinned(self) -> tuple[tuple[int, str], ...]:
        """What no compactor may lose, word for word: the id of the turn and the text."""
        return tuple((self.turns[clause.turn].id, clause.text) for clause in self.clauses if clause.is_pinned)


def prepare(memory: Memory, chunk_id: int) -> Task:
    """Read a chunk and what is related to it, and compact it without a model. Raises NotFound."""
    store = memory.store
    chunk = store.chunk(chunk_id)
    turns = tuple(store.turns_of_chunk(chunk_id))
    index = memory.index(chunk.namespace)
    words = Counter(term for turn in turns for term in terms(turn.text))
    idf = idf_of(len(index), store.document_counts(chunk.namespace, sorted(words)))
    related = tuple(_related(memory, chunk, turns, words, idf))
    worths = _worths(store.compaction_state(chunk.namespace))
    dense = {turn.id for turn in turns if kind_of(turn.text).is_dense}
    spoken = [Spoken(turn.speaker, turn.text) for turn in turns]
    prose = [number for number, turn in enumerate(turns) if turn.id not in dense]
    of_prose = [spoken[number] for number in prose]
    weighed = extract.weigh(of_prose, idf, _seen_before(memory, chunk.namespace, turns, words))
    worths.add(weighed, sum(turn.length_chars for turn in of_prose))
    left = extract.extract(of_prose, weighed, worths.cutoff())
    worths.note(left.kept_chars)
    trimmed = _trimmed(memory, turns, dense, related)
    of_dense = {number: trimmed[turn.id] for number, turn in enumerate(turns) if turn.id in trimmed}
    text, rho = composed(turns, of_dense | dict(zip(prose, left.texts, strict=True)))
    raw_chars = sum(turn.length_chars for turn in spoken)
    return Task(
        chunk,
        turns,
        related,
        left.raw_chars / raw_chars if raw_chars else 0.0,
        tuple(replace(clause, turn=prose[clause.turn]) for clause in weighed),
        of_dense,
        left.kept_chars,
        Outcome(text, rho, tuple(_stated(turns)), EXTRACTIVE),
        json.dumps(asdict(worths)),
    )


def composed(turns: Sequence[Turn], texts: Mapping[int, str]) -> tuple[str, float]:
    """Return the text of a chunk of which so much is left, by the turns' numbers, and its rho."""
    spoken = [Spoken(turn.speaker, turn.text) for turn in turns]
    raw_chars = sum(turn.length_chars for turn in spoken)
    text = extract.lines(spoken, Extract(tuple(texts.get(n, "") for n in range(len(turns))), raw_chars, 0))
    return text, min(1.0, len(text) / raw_chars) if raw_chars else 1.0


def store(memory: Memory, task: Task, outcome: Outcome) -> list[int]:
    """Keep what became of a chunk, all of it or nothing; return the ids of the new records.

    What was forgotten since `prepare` read it, there or in a related chunk, leaves the chunk waiting. Raises NotFound when
    the chunk itself is gone.
    """
    if tuple(memory.store.turns_of_chunk(task.chunk.id)) != task.turns or not all(
        other.text == _text_of(memory, other.chunk_id) for other in task.related
    ):
        memory.store.chunk(task.chunk.id)
        return []
    there = {(r.text, r.turn_ids) for r in memory.store.records_of_chunk(task.chunk.id)}
    new = [record for record in outcome.records if (record.text, record.turn_ids) not in there]
    ids = memory.store.reconciled(
        task.chunk.id,
        made_by=outcome.made_by,
        version=(outcome.text, outcome.rho),
        new_records=new,
        relations=_relations(memory, task.chunk.namespace, new),
        links=[(r.chunk_id, r.weight) for r in task.related if _exists(memory, r.chunk_id)],
        state=task.state,
    )
    keep_whole(memory, task.chunk.namespace, task.chunk.id)
    return ids


def keep_whole(memory: Memory, namespace: str, chunk_id: int) -> None:
    """Put a reconciled chunk among those that stand whole in extents, if there are any."""
    if memory.extents is not None:
        versions = memory.store.chunk_versions(chunk_id)
        turns = memory.store.turns_of_chunk(chunk_id)
        memory.extents.keep(namespace, chunk_id, turns, versions[-1] if versions else None)


def _exists(memory: Memory, chunk_id: int) -> bool:
    try:
        memory.store.chunk(chunk_id)
    except NotFound:
        return False
    return True


# -- related chunks --------------------------------------------------------------------------------------------


def _related(memory: Memory, chunk: Chunk, turns: Sequence[Turn], words: Counter[str], idf: Idf) -> list[Related]:
    """Return the earlier chunks of the namespace that a search for the chunk's keywords finds, at most five."""
    asked = keywords(turns, words, idf)
    if not asked:
        return []
    scores: defaultdict[int, list[float]] = defaultdict(list)
    for span in memory.search([chunk.namespace], " ".join(asked), limit=_HITS + len(turns)):
        other = span.turn.chunk_id
        if other is not None and other < chunk.id and span.score > 0:
            scores[other].append(span.score)
    weights = {other: sum(sorted(found, reverse=True)[:3]) for other, found in scores.items()}
    best = sorted(weights, key=lambda other: (-weights[other], other))[:MOST_RELATED]
    return [Related(other, round(weights[other], 4), _text_of(memory, other)) for other in sorted(best)]


def keywords(turns: Sequence[Turn], words: Counter[str], idf: Idf) -> list[str]:
    """Return the words of the turns that tell most about them, the best first."""
    found: dict[str, str] = {}
    for turn in turns:
        for word in _WORD.findall(turn.text):
            for term in terms(word):
                found.setdefault(term, word)
    best = sorted(found, key=lambda term: (-idf(term) * (1 + min(words[term], 4)), term))[:_KEYWORDS]
    return [found[term] for term in best]


def _text_of(memory: Memory, chunk_id: int) -> str:
    versions = memory.store.chunk_versions(chunk_id)
    if versions:
        return versions[-1].text
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in memory.store.turns_of_chunk(chunk_id))


# -- compaction without a model --------------------------------------------------------------------------------


def _seen_before(memory: Memory, namespace: str, turns: Sequence[Turn], words: Counter[str]) -> Counter[str]:
    """Return in how many turns before these each of their terms is."""
    index = memory.index(namespace)
    own = index.rows_of([turn.id for turn in turns])
    if not len(own):
        return Counter()
    ids = memory.store.term_ids(namespace, sorted(words))
    counts = index.postings.counts_before(list(ids.values()), int(own[0]))
    return Counter(dict(zip(ids, counts, strict=True)))


def _worths(state: str | None) -> Worths:
    if state is None:
        return Worths(RHO)
    kept = json.loads(state)
    return Worths(**{**kept, "rho": RHO, "chars": {int(number): chars for number, chars in kept["chars"].items()}})


def _trimmed(memory: Memory, turns: Sequence[Turn], dense: set[int], related: Sequence[Related]) -> dict[int, str]:
    """Return the dense turns' texts without superseded reads, and without what stands elsewhere word for word."""
    if not dense:
        return {}
    index = LineIndex()
    for other in sorted(r.chunk_id for r in related):
        for turn in memory.store.turns_of_chunk(other):
            index.trim(turn.id, turn.text)
    reads = [read for read in file_reads(turns) if read.turn in dense]
    gone = superseded(reads)
    paths = {read.turn: read.path for read in reads}
    texts: dict[int, str] = {}
    for turn in turns:
        if turn.id in gone:
            texts[turn.id] = superseded_note(paths[turn.id], gone[turn.id])
        elif turn.id in dense:
            texts[turn.id] = index.trim(turn.id, turn.text)
    return texts


# -- statements ------------------------------------------------------------------------------------------------


def _stated(turns: Sequence[Turn]) -> list[NewRecord]:
    found: dict[tuple[str, str, str], NewRecord] = {}
    for turn in turns:
        for s in statements(turn.speaker, turn.text):
            found.setdefault(
                (s.subject, s.slot, s.text),
                NewRecord(s.text, (turn.id,), s.subject, s.slot, turn.event_at_s, s.value, s.is_negated, s.changes),
            )
    return list(found.values())


def _relations(memory: Memory, namespace: str, new: Sequence[NewRecord]) -> list[NewRelation]:
    """Return how new records stand to the current ones of their slots, and to each other."""
    found: list[NewRelation] = []
    for number, record in enumerate(new):
        if not (record.slot and record.value):
            continue
        said = _statement(record)
        for other in memory.store.records_of_slot(namespace, record.subject, record.slot, _SLOT_RECORDS):
            if other.is_current and other.value:
                verdict = judge(said, _statement(other), record.event_at_s, other.event_at_s)
                if verdict is not None:
                    pair = NewRelation(number, verdict.relation, verdict.reason, other.id)
                    found.append(replace(pair, is_newer=verdict.first_is_newer))
        for before, earlier in enumerate(new[:number]):
            if earlier.value and (earlier.subject, earlier.slot) == (record.subject, record.slot):
                verdict = judge(said, _statement(earlier), record.event_at_s, earlier.event_at_s)
                if verdict is not None:
                    pair = NewRelation(number, verdict.relation, verdict.reason, other_record=before)
                    found.append(replace(pair, is_newer=verdict.first_is_newer))
    return found


def _statement(record: NewRecord | Record) -> Statement:
    return Statement(record.subject, record.slot, record.value, record.text, record.is_negated, record.changes)
