"""What the world puts into memory: broken lines, clocks that run backwards, huge and empty things, any language.

Nothing of it is lost, and what can't be taken is said. Compactors that answer nonsense or hang are in test_memory_model.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from akashic_daemon.errors import NotFound
from akashic_daemon.memory import words
from akashic_daemon.memory.answers import Selector
from akashic_daemon.memory.memory import Said
from akashic_daemon.memory_service.service import MemoryService
from akashic_daemon.paths import find_paths
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from awaited import awaited
from fake_service import assistant, user
from hashed_words import HashedWords
from memory_service import FACTS, on_service, turn

WAGONS = ("crimson", "scarlet", "emerald", "turquoise", "yellow", "indigo", "violet")


async def hashed() -> HashedWords:
    return HashedWords()


def service(home: Path, *, is_idle: bool = True) -> MemoryService:
    return MemoryService(find_paths({"AKASHIC_HOME": str(home)}), hashed, is_idle=lambda: is_idle)


def said(*texts: str) -> list[Said]:
    return [Said("Ann", text, f"m{number}") for number, text in enumerate(texts)]


async def taken(service: Service, file: Path) -> list[str]:
    """Import a transcript and remember it; return what was said of its lines."""
    problems: list[str] = []
    async with aclosing(service.sessions.import_transcript(file, format_name=None, name="log")) as events:
        async for event in events:
            assert event.error is None
            problems += [f"{problem.count} x {problem.reason}" for problem in event.problems]
            for session in event.sessions:
                await service.chat_memory.remember(session.session)
    return problems


def test_broken_lines_of_a_transcript_are_said_and_the_others_are_remembered(home: Path, tmp_path: Path) -> None:
    good = [json.dumps({"role": "user", "content": fact}) for fact in FACTS]
    lines = [
        good[0],
        '{"role": "user", "content": "cut o',
        good[1],
        "}{",
        good[2],
        "[1, 2",
        '"bare"',
        *good[3:],
    ]

    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(lines) + "\n")

    async def check(service: Service) -> None:
        told = await taken(service, file)
        assert sum(int(line.split()[0]) for line in told) == 4
        held = {found.turn.text for found in await service.memory.search(" ".join(FACTS), limit=50)}
        assert held == set(FACTS)

    on_service(home, check)


@awaited
async def test_clocks_out_of_order_change_neither_the_order_of_turns_nor_what_is_newer(tmp_path: Path) -> None:
    memory = service(tmp_path)
    times = [5e8, 1e9, 9e8, None, -1.0, 4e12, 0.0]
    turns = [
        Said("Ann", f"The {name} wagon brought mangoes", f"m{n}", at)
        for n, (name, at) in enumerate(zip(WAGONS, times, strict=True))
    ]
    await memory.add("user", turns, session="s")
    await memory.add("user", [Said("Ann", "I live in Lyon.", "l1", 2e9)], session="late")
    await memory.add("user", [Said("Ann", "I moved, I live in Oslo now.", "l2", 1e9)], session="read later")
    await memory.seal("user")
    await memory.compact()
    (chunk,) = [c for c in await memory.chunks() if c.sealed_at_s is not None]
    kept = (await memory.chunk(chunk.id)).turns
    assert [t.text for t in kept[: len(turns)]] == [t.text for t in turns]
    assert [t.event_at_s for t in kept[: len(turns)]] == times
    current = [r.text for r in (await memory.chunk(chunk.id)).records if r.is_current and r.slot == "home"]
    assert any("Lyon" in text for text in current)  # what was said last, not what was read last
    recalled = (await memory.recall(f"Which of the wagons {' '.join(WAGONS)} brought mangoes?")).text
    places = [recalled.index(name) for name in ("yellow", "violet", "crimson", "emerald", "scarlet", "indigo")]
    assert places == sorted(places)
    assert {t.turn.text for t in await memory.search("wagon mangoes", now=6e8, limit=50)} >= {turns[0].text}
    assert all((t.turn.event_at_s or 0.0) <= 6e8 for t in await memory.search("wagon mangoes", now=6e8, limit=50))
    assert len([line async for line in memory.export()]) == len(turns) + 2
    await memory.close()


@awaited
async def test_a_message_of_ten_megabytes_is_kept_whole_found_at_its_end_and_forgotten(tmp_path: Path) -> None:
    chance = random.Random(5)
    # Long words: what they are is counted for each, and ten megabytes are ten megabytes.
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=100)) for _ in range(40)]
    text = " ".join(chance.choices(vocabulary, k=100_000)) + " the heron sleeps in box 77"
    assert len(text) > 10_000_000
    memory = service(tmp_path, is_idle=False)
    await memory.add("user", [Said("tool", text, "huge"), Said("Ann", "thanks, that was long", "m2")], session="s")
    best, *_ = await memory.search("where does the heron sleep?", limit=3)
    assert best.turn.text.endswith("the heron sleeps in box 77")
    turns = (await memory.forget(Selector(session="s"))).turns
    assert "".join(t.text for t in sorted(turns, key=lambda t: t.id) if t.speaker == "tool") == text
    recalled = await memory.recall("where does the heron sleep?", budget_tokens=400)
    assert recalled.length_tokens <= 400
    await memory.forget(Selector(session="s"), dry_run=False)
    assert await memory.search("where does the heron sleep?") == []
    await memory.close()


def test_empty_sessions_and_messages_leave_nothing_and_break_nothing(home: Path, tmp_path: Path) -> None:
    async def check(service: Service) -> None:
        store, thread = service.sessions._store, service.sessions._thread
        sessions: dict[str, list[Message]] = {
            "empty": [],
            "blank": [user(""), assistant(" \n\t"), user("\u200b")],
            "only-system": [Message(Role.SYSTEM, "You are brief.")],
        }
        for name, messages in sessions.items():
            await thread.run(partial(store.ensure, name, origin="import:test"))
            if messages:
                await thread.run(partial(store.append, name, messages))
            done = await service.chat_memory.remember(name)
            assert (await service.chat_memory.remember(name)).new_ids == ()
            assert len(done.new_ids) <= (name == "blank")
        assert (await service.memory.add("user", [], session="none")).turn_ids == ()
        assert len(await service.memory.search("", limit=5)) == len(await service.memory.search("   ", limit=5))
        told = (await turn(service, "empty", "What does the parrot eat?")).reuse
        assert told is not None

    on_service(home, check)


@pytest.mark.parametrize(
    ("text", "question", "other"),
    [
        ("我们的鹦鹉只吃芒果。", "鹦鹉吃什么？", "我弟弟在里昂修小提琴。"),
        ("オウムはマンゴーしか食べません。", "オウムは何を食べますか", "弟はリヨンでバイオリンを直します。"),
        ("앵무새는 망고만 먹습니다.", "앵무새는 무엇을 먹습니까?", "동생은 리옹에서 바이올린을 고칩니다."),
        ("นกแก้วกินแต่มะม่วง", "นกแก้วกินอะไร", "น้องชายซ่อมไวโอลินที่ลียง"),
        ("Попугай ест только манго.", "Что ест попугай?", "Брат чинит скрипки в Лионе."),
        ("الببغاء يأكل المانجو فقط", "ماذا يأكل الببغاء؟", "أخي يصلح الكمان في ليون"),
        ("🦜 ❤️ 🥭 👩🏽‍🚀", "🦜?", "🚲 💥"),
    ],
)
@awaited
async def test_other_languages_and_emoji_are_found_by_their_words(
    tmp_path: Path, text: str, question: str, other: str
) -> None:
    memory = service(tmp_path)
    await memory.add("user", said(other, text, "Something else was said too."), session="s")
    first, *_ = await memory.search(question, limit=3, explain=True)
    assert first.turn.text == text
    assert first.parts["words_around"] > 0
    assert words.terms(question)
    await memory.seal("user")
    await memory.compact()
    assert memory.problems() == ()
    await memory.close()


@awaited
async def test_what_others_refer_to_can_be_forgotten_and_they_stand_without_it(tmp_path: Path) -> None:
    memory = service(tmp_path)
    await memory.add("user", [Said("Ann", "I live in Lyon.", "a", 1e9)], session="old")
    await memory.add("user", [Said("Ann", "I moved, I live in Oslo now.", "b", 1.1e9)], session="new")
    await memory.add("user", [Said("Ann", "I live in Lyon.", "c", 1.2e9)], session="copy")
    await memory.seal("user")
    await memory.compact()
    (chunk,) = [c for c in await memory.chunks() if c.sealed_at_s is not None]
    before = {r.text: r.is_current for r in (await memory.chunk(chunk.id)).records if r.slot == "home"}
    assert before == {"I live in Lyon.": False, "I moved, I live in Oslo now.": True}
    newer = next(t for t in (await memory.chunk(chunk.id)).turns if "Oslo" in t.text)
    planned = await memory.forget(Selector(ids=(f"t{newer.id}",)))
    assert planned.gone.record_ids  # the dry run names what was made of it
    done = await memory.forget(Selector(ids=(f"t{newer.id}",)), dry_run=False)
    assert done.gone.record_ids == planned.gone.record_ids
    await memory.compact()
    records = [r for c in await memory.chunks() for r in (await memory.chunk(c.id)).records if r.slot == "home"]
    assert [(r.text, r.is_current) for r in records] == [("I live in Lyon.", True)]
    with pytest.raises(NotFound):
        await memory.history(f"t{newer.id}")
    kept = await memory.history(f"t{(await memory.search('Lyon', limit=1))[0].turn.id}")
    assert {source.name for sources in kept.sources.values() for source in sources} == {"old", "copy"}
    assert memory.problems() == ()
    await memory.close()


@awaited
async def test_two_writers_at_once_lose_nothing_and_store_what_both_say_once(tmp_path: Path) -> None:
    memory = service(tmp_path)
    own = {name: [f"{name} saw {n} herons in box {n * 7}" for n in range(600)] for name in ("left", "right")}
    both = [f"both saw {n} storks" for n in range(600)]

    async def write(name: str) -> None:
        for start in range(0, 600, 50):
            mixed = [
                t for pair in zip(own[name][start : start + 50], both[start : start + 50], strict=True) for t in pair
            ]
            await memory.add("user", said(*mixed), session=f"{name}-{start}")

    await asyncio.gather(write("left"), write("right"), memory.compact())
    await memory.compact()
    kept = [t.text for c in await memory.chunks() for t in (await memory.chunk(c.id)).turns]
    assert sorted(kept) == sorted([*own["left"], *own["right"], *both])
    (found, *_) = await memory.search("both saw 599 storks", limit=1)
    assert len(found.sources) == 2
    await memory.close()
