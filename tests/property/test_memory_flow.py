"""Any order of adding, sealing, reconciling and forgetting leaves memory whole: nothing twice, nothing lost, nothing left."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from akashic_daemon.memory import chunks, ingest, reconcile
from akashic_daemon.memory.extents import open_extents
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.words import terms
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from hashed_words import HashedWords

SPACES = ("user", "project:p")
WORDS = ("parrot", "mango", "harbour", "violin", "Cremona", "rent", "tyre")


class MemoryFlow(RuleBasedStateMachine):
    """A memory with extents beside what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.store = open_memory_store(self.path / "memory.sqlite", SystemClock())
        self.memory = Memory(self.store, HashedWords())
        self.memory.extents = open_extents(self.path / "memory", SystemClock(), extent_bytes=32 << 10)
        self.told = 0
        self.there: dict[str, dict[int, str]] = {space: {} for space in SPACES}
        self.secrets: set[str] = set()
        """A word of each turn that was forgotten, and that no other turn ever had."""

    def teardown(self) -> None:
        assert self.memory.extents is not None
        self.memory.extents.close()
        self.store.close()
        self._folder.cleanup()

    @rule(
        space=st.sampled_from(SPACES),
        words=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=4),
        length=st.sampled_from((1, 1, 40, 300)),
    )
    def add(self, space: str, words: list[list[str]], length: int) -> None:
        said = []
        for own in words:
            self.told += 1
            said.append(Said("Ann", " ".join([f"secret{self.told}q", *own * length])[:4000], f"m{self.told}"))
        done = ingest.remember(self.memory, space, "s", said)
        assert done.new_ids == done.turn_ids
        self.there[space].update(zip(done.turn_ids, (one.text for one in said), strict=True))

    @precondition(lambda self: any(self.there.values()))
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        space = data.draw(st.sampled_from([space for space in SPACES if self.there[space]]))
        turn_id, text = data.draw(st.sampled_from(sorted(self.there[space].items())))
        variant = data.draw(st.sampled_from([text, text.upper(), f"  {text}..."]))
        done = ingest.remember(self.memory, space, "elsewhere", [Said("Ann", variant, f"again{turn_id}")])
        assert (done.turn_ids, done.new_ids) == ((turn_id,), ())

    @rule(space=st.sampled_from(SPACES))
    def seal(self, space: str) -> None:
        if space in self.store.namespaces():
            chunks.seal(self.memory, space)

    @rule(count=st.integers(1, 3))
    def reconcile(self, count: int) -> None:
        for chunk in self.store.waiting_chunks(count):
            task = reconcile.prepare(self.memory, chunk.id)
            reconcile.store(self.memory, task, task.extractive)

    @precondition(lambda self: any(self.there.values()))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        space = data.draw(st.sampled_from([space for space in SPACES if self.there[space]]))
        ids = data.draw(st.lists(st.sampled_from(sorted(self.there[space])), min_size=1, max_size=3, unique=True))
        gone = self.memory.forget(ids)
        assert gone.turn_ids == tuple(sorted(ids))
        self.secrets.update(self.there[space].pop(turn_id).split()[0] for turn_id in ids)

    @rule()
    def restart(self) -> None:
        extents = self.memory.extents
        self.memory = Memory(self.store, HashedWords())
        self.memory.extents = extents

    @invariant()
    def every_turn_is_in_one_chunk_of_its_namespace(self) -> None:
        for space in self.store.namespaces():
            found = self.store.chunks_of(space)
            assert sum(chunk.sealed_at_s is None for chunk in found) <= 1
            turns = [turn for chunk in found for turn in self.store.turns_of_chunk(chunk.id)]
            assert [turn.id for turn in turns] == sorted(self.there[space])
            assert {turn.id: turn.text for turn in turns} == self.there[space]
            for chunk in found:
                own = self.store.turns_of_chunk(chunk.id)
                assert chunk.length_tokens == sum(turn.length_tokens for turn in own)

    @invariant()
    def what_is_reconciled_has_a_version_and_a_copy_and_nothing_else_has(self) -> None:
        assert self.memory.extents is not None
        for space in self.store.namespaces():
            done = {c.id for c in self.store.chunks_of(space) if c.reconciled_at_s is not None}
            assert {c.id for c in self.store.chunks_of(space) if self.store.chunk_versions(c.id)} == done
            assert self.memory.extents.chunks(space) == done

    @invariant()
    def terms_are_counted_as_the_turns_have_them(self) -> None:
        for space in self.store.namespaces():
            expected = Counter(term for text in self.there[space].values() for term in set(terms(text)))
            counted = {term: count for term, (_, count) in self.store.terms(space).items() if count}
            assert counted == dict(expected)

    @invariant()
    def nothing_forgotten_is_in_any_file(self) -> None:
        if self.secrets:
            content = b"".join(file.read_bytes() for file in self.path.rglob("*") if file.is_file()).lower()
            assert not [secret for secret in self.secrets if secret.encode() in content]


MemoryFlow.TestCase.settings = settings(
    max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMemoryFlow = MemoryFlow.TestCase
