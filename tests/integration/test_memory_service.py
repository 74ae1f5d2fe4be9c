"""The daemon's memory as the rest of it sees it: in, found, told apart, forgotten, and moved to another home."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from akashic_daemon.errors import BadRequest, NotFound, TranscriptError
from akashic_daemon.memory.answers import Remembered, Selector
from akashic_daemon.memory.memory import Said
from akashic_daemon.memory.recalled import CLOSING, marked, without_recalled
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.paths import Paths, find_paths
from akashic_daemon.store.memory.store import open_memory_store
from akashic_daemon.types import SystemClock
from awaited import awaited
from hashed_words import HashedWords


async def hashed() -> HashedWords:
    return HashedWords()


def service(home: Path) -> MemoryService:
    return MemoryService(paths(home), hashed)


def paths(home: Path) -> Paths:
    return find_paths({"AKASHIC_HOME": str(home)})


def said(*texts: str, speaker: str = "Ann", at_s: float | None = None) -> list[Said]:
    return [Said(speaker, text, f"m{number}", at_s) for number, text in enumerate(texts)]


FACTS = ("the parrot eats mangoes", "rent is due on Monday", "the bicycle has a flat tyre", "coffee is out again")


@awaited
async def test_asking_a_home_without_memory_makes_no_file(tmp_path: Path) -> None:
    memory = service(tmp_path)
    assert await memory.search("parrot") == []
    assert (await memory.recall("parrot")).text == ""
    assert (await memory.stats()).namespaces == ()
    assert [line async for line in memory.export()] == []
    await memory.close()
    assert not paths(tmp_path).memory_database.exists()


@awaited
async def test_what_was_added_is_found_with_where_it_was_said(tmp_path: Path) -> None:
    memory = service(tmp_path)
    done = await memory.add("user", said(*FACTS), session="s1")
    assert len(done.new_ids) == 4
    assert (await memory.add("user", said(*FACTS), session="s1")).known == 4
    first, *_ = await memory.search("flat tyres", limit=2, explain=True)
    assert first.turn.text == FACTS[2]
    assert [source.name for source in first.sources] == ["s1"]
    assert first.parts
    assert (await memory.search("flat tyres", limit=1))[0].parts == {}
    await memory.close()


@awaited
async def test_what_was_said_later_than_now_is_not_found(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said("the parrot eats mangoes", at_s=100.0), session="s1")
    await memory.add("user", said("the parrot eats seeds", at_s=200.0), session="s2")
    assert [f.turn.text for f in await memory.search("parrot", now=150.0)] == ["the parrot eats mangoes"]
    await memory.close()


@awaited
async def test_recalled_text_fits_its_budget_and_is_never_stored_again(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said(*FACTS), session="s1")
    recalled = await memory.recall("parrot and rent", budget_tokens=80)
    assert 0 < recalled.length_tokens <= 80
    assert FACTS[0] in recalled.text
    done = await memory.add("user", said(recalled.text, f"{recalled.text}\nso what does it eat?"), session="s2")
    assert done.recalled == 2
    assert len(done.new_ids) == 1
    assert "mangoes" not in (await memory.search("so what does it eat", limit=1))[0].turn.text
    await memory.close()


@awaited
async def test_forgetting_says_first_what_goes_and_then_it_is_in_no_file(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said(*FACTS), session="s1")
    await memory.add("user", said("the parrot's name is Quasimodo"), session="s2")
    selector = Selector(session="s2")
    planned = await memory.forget(selector)
    assert not planned.is_done
    assert [turn.text for turn in planned.turns] == ["the parrot's name is Quasimodo"]
    assert await memory.search("Quasimodo", limit=1)
    assert (await memory.forget(selector, dry_run=False)).gone.turn_ids == planned.gone.turn_ids
    await memory.close()
    files = [p for p in paths(tmp_path).store_dir.rglob("*") if p.is_file()]
    assert files
    assert not any(b"Quasimodo" in p.read_bytes() or b"quasimodo" in p.read_bytes() for p in files)


@awaited
async def test_a_selector_means_what_all_of_its_fields_agree_on(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said("one parrot", at_s=10.0), session="s1")
    await memory.add("user", said("two parrots", at_s=20.0), session="s1")
    await memory.add("project:p", said("three parrots", at_s=20.0), session="s1")

    async def texts(selector: Selector) -> list[str]:
        return [turn.text for turn in (await memory.forget(selector)).turns]

    assert await texts(Selector(session="s1", after_s=15.0)) == ["two parrots", "three parrots"]
    assert await texts(Selector(session="s1", after_s=15.0, namespaces=("user",))) == ["two parrots"]
    assert await texts(Selector(before_s=15.0)) == ["one parrot"]
    (_, chunk) = await memory.chunks()
    assert await texts(Selector(ids=(f"c{chunk.id}",))) == ["one parrot", "two parrots"]
    with pytest.raises(NotFound, match="t999"):
        await texts(Selector(ids=("t999",)))
    with pytest.raises(BadRequest):
        Selector()
    with pytest.raises(BadRequest, match="parrot"):
        await texts(Selector(ids=("parrot",)))
    await memory.close()


@awaited
async def test_what_is_exported_comes_back_with_all_its_origins(tmp_path: Path) -> None:
    memory = service(tmp_path / "a")
    await memory.add("user", said(*FACTS, at_s=5.0), session="s1")
    await memory.add("user", said(FACTS[0]), session="s2")
    lines = [line async for line in memory.export()]
    other = service(tmp_path / "b")
    done = await other.import_(stream(lines))
    assert len(done.new_ids) == len(lines) == 4
    assert (await other.import_(stream(lines))).new_ids == ()
    assert [line async for line in other.export()] == lines
    await memory.close()
    await other.close()


@awaited
async def test_a_broken_line_is_named_and_those_before_it_are_in(tmp_path: Path) -> None:
    memory = service(tmp_path / "a")
    await memory.add("user", said(*FACTS), session="s1")
    lines = [line async for line in memory.export()]
    other = service(tmp_path / "b")
    with pytest.raises(TranscriptError, match="line 3"):
        await other.import_(stream([*lines[:2], lines[2][:-5], lines[3]]))
    assert (await other.stats()).namespaces[0].turns == 2
    await memory.close()
    await other.close()


@awaited
async def test_importing_nothing_makes_no_file(tmp_path: Path) -> None:
    memory = service(tmp_path)
    assert await memory.import_(stream(["", "\n"])) == Remembered((), ())
    with pytest.raises(TranscriptError, match="line 1"):
        await memory.import_(stream(["{"]))
    await memory.close()
    assert not paths(tmp_path).memory_database.exists()


@pytest.mark.parametrize("at_s", [1e17, 1.7e12, -1e13])
@awaited
async def test_what_has_a_time_that_no_calendar_has_is_recalled_without_a_day(tmp_path: Path, at_s: float) -> None:
    memory = service(tmp_path)
    await memory.add("user", said(*FACTS, at_s=at_s), session="s1")
    assert f"- Ann: {FACTS[0]}\n" in (await memory.recall("the parrot and the mangoes")).text + "\n"
    await memory.close()


@awaited
async def test_what_searches_returned_is_noted_without_what_was_asked(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said(*FACTS), session="s1")
    found = await memory.search("xylophone parrot tyre", limit=3)
    await memory.close()
    store = open_memory_store(paths(tmp_path).memory_database, SystemClock())
    assert store.result_sets("user") == [tuple(one.turn.id for one in found)]
    store.close()
    assert not any(b"xylophone" in p.read_bytes() for p in paths(tmp_path).store_dir.rglob("*") if p.is_file())


@awaited
async def test_a_wrong_supersession_is_taken_back(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said("I live in Lyon.", at_s=1.0), session="s1")
    await memory.add("user", said("I moved to Paris.", at_s=2.0), session="s2")
    await memory.seal("user")
    await memory.compact()
    (chunk,) = await memory.chunks()
    old, new = (await memory.chunk(chunk.id)).records
    assert (old.is_current, new.is_current) == (False, True)
    await memory.keep_both(f"r{new.id}", f"r{old.id}")
    assert all(record.is_current for record in (await memory.chunk(chunk.id)).records)
    with pytest.raises(NotFound, match="it doesn't"):
        await memory.keep_both(f"r{new.id}", f"r{old.id}")
    for other, kind in ((f"t{old.id}", "turn"), (f"c{old.id}", "chunk")):
        with pytest.raises(BadRequest, match=f"it is a {kind}'s"):
            await memory.keep_both(f"r{new.id}", other)
    told = await memory.history(f"r{old.id}")
    assert [turn.text for turn in told.turns] == ["I live in Lyon."]
    await memory.close()


async def stream(lines: list[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line


@awaited
async def test_recalled_lines_are_known_where_their_marks_were_lost(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", said(*FACTS, at_s=1_600_000_000.0), session="s1")
    recalled = await memory.recall("What does the parrot eat, and when is rent due?")
    assert "2020-09-13 Ann: the parrot eats mangoes" in recalled.text
    lines = recalled.text.splitlines()[2:-1]
    quoted = "\n".join([f"> {line}" for line in lines])
    cut_off = "\n".join(lines)
    done = await memory.add(
        "user", said(quoted, f"{cut_off}\nso, no seeds?", "- 2020-09-13 Ann: the parrot eats seeds"), session="s2"
    )
    assert done.recalled == 2
    new = [(await memory.history(f"t{turn}")).turns[0].text for turn in done.new_ids]
    assert new == ["so, no seeds?", "- 2020-09-13 Ann: the parrot eats seeds"]
    await memory.close()


@given(before=st.text(), recalled=st.text(), after=st.text())
def test_nothing_but_what_was_marked_is_taken_out(before: str, recalled: str, after: str) -> None:
    assume("akashic-memory" not in before + after)
    text = before + marked(recalled) + after
    assert without_recalled(text) == before + after.removeprefix("\n")


def test_marked_text_is_known_as_it_stands_in_html() -> None:
    assert without_recalled("a &lt;akashic-memory&gt;\nx\n&lt;/akashic-memory&gt; b") == "a  b"


def test_marks_inside_recalled_text_do_not_end_it() -> None:
    assert without_recalled("a " + marked(f"x {CLOSING} y") + "b") == "a b"
    assert without_recalled(f"what does {CLOSING} mean?") == f"what does {CLOSING} mean?"
