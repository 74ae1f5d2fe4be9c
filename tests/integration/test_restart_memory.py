"""What a service still knows after it was restarted or killed, what goes with a session, and what it says of changed models."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from akashic_daemon.errors import StoreUnwritable
from akashic_daemon.protocol import native
from akashic_daemon.store.book import BookStore
from akashic_daemon.trajectory.message import Message, Role
from fake_service import answer, ask, assistant, running_service, user
from restarts import Interruption, Life, Named, life, named
from watched_service import driven, rendered

SECRET = "the safe is opened with 4711"
TURNS = [Message(Role.SYSTEM, "be exact. " * 4), user("go")]
for number in range(6):
    TURNS += [assistant(f"call {number}"), Message(Role.TOOL, f"result {number} " * 3, tool_call_id="c")]


def run(home: Path, how: Interruption, work: Callable[[Life], Awaitable[None]], **options: object) -> None:
    async def inside() -> None:
        async with life(home, how, **options) as on:  # type: ignore[arg-type]
            await work(on)

    with driven():
        asyncio.run(asyncio.wait_for(inside(), 60))


def rows(home: Path, table: str) -> int:
    with closing(sqlite3.connect(home / "store" / "akashic.db")) as c:
        return int(c.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def files(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((home / "store").iterdir()) if file.is_file())


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_an_edit_that_became_operations_is_gone_on_from(home: Path, how: Interruption) -> None:
    async def work(on: Life) -> None:
        told = list(TURNS)
        await on.watch.ask(ask(*told, session="s", edit_reuse="drop"))
        del told[3]
        first = await on.watch.ask(ask(*told, session="s", edit_reuse="drop"))
        assert first.job.route.kind == "edited"
        await on.interrupt()
        told += [assistant(first.finished.text), user("and now?")]
        done = await on.watch.ask(ask(*told, session="s", edit_reuse="drop"))
        edited = next(r.path for r in done.job.routes if r.kind == "edited")
        before = first.job.route.path
        assert edited.tokens[: len(before.tokens)] == before.tokens
        assert edited.ops[: len(before.ops)] == before.ops != ()

    run(home, how, work)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_operations_without_a_place_stand_where_they_stood(home: Path, how: Interruption) -> None:
    async def work(on: Life) -> None:
        told = list(TURNS)
        ops = ({"op": "drop", "messages": [3]}, {"op": "replace", "message": 5, "content": "short"})
        await on.watch.ask(ask(*told, session="s"))
        first = await on.watch.ask(ask(*told, session="s", cache_ops=ops))
        await on.interrupt()
        told += [assistant(first.finished.text), user("and now?")]
        done = await on.watch.ask(ask(*told, session="s", cache_ops=ops))
        program = next(r.path for r in done.job.routes if r.kind == "program")
        same = len(first.job.routes[0].path.tokens)
        assert program.tokens[:same] == first.job.routes[0].path.tokens
        assert first.job.routes[0].path.ops == program.ops[: len(first.job.routes[0].path.ops)]

    run(home, how, work)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_client_without_a_session_that_tells_the_answer_otherwise_is_the_same_session(
    home: Path, how: Interruption
) -> None:
    async def work(on: Life) -> None:
        first = await on.watch.ask(ask(user("a question")))
        await on.interrupt()
        told = [user("a question"), assistant("another answer"), user("next")]
        done = await on.watch.ask(ask(*told))
        assert done.finished.reuse.session == first.finished.reuse.session

    run(home, how, work)


def test_the_older_text_and_the_order_of_tools_are_kept_over_a_restart(home: Path) -> None:
    async def work(on: Life) -> None:
        tools = ({"name": "one"}, {"name": "two"})
        told = [Message(Role.SYSTEM, "now: 12:30\nbe exact"), *TURNS[1:]]
        await on.watch.ask(ask(*told, session="s", tools=tools))
        told[0] = replace(told[0], content="now: 12:31\nbe exact")
        await on.watch.ask(ask(*told, user("one"), session="s", edit_reuse="drop", tools=tools))
        await on.interrupt()
        told[0] = replace(told[0], content="now: 12:32\nbe exact")
        done = await on.watch.ask(ask(*told, user("two"), session="s", edit_reuse="drop", tools=tools[::-1]))
        edited = next(r for r in done.job.routes if r.kind == "edited")
        text = "".join(map(chr, edited.path.tokens))
        assert "now: 12:30" in text
        assert "now: 12:31" not in text
        assert any("the earlier one was kept" in note for note in done.finished.reuse.notes)

    run(home, "restart", work, flags={"cache.volatile_text": r"^now: .*$"})


def test_a_removed_session_leaves_nothing_of_what_it_computed(home: Path) -> None:
    async def work(on: Life) -> None:
        ops = ({"op": "replace", "message": 3, "content": SECRET, "at": 5}, {"op": "drop", "messages": [5]})
        placeless = ({"op": "replace", "message": 3, "content": SECRET},)
        for session in ("gone", "stays"):
            extra = () if session == "stays" else (ops, placeless)
            await on.watch.ask(ask(*TURNS, user(session), session=session))
            for program in extra:
                await on.watch.ask(ask(*TURNS, user(session), session=session, cache_ops=program))
        await on.watch.service._thread.settled()
        database = home / "store" / "akashic.db"
        with closing(sqlite3.connect(database)) as c:
            query = "SELECT t.body FROM traces t JOIN sessions s ON s.id = t.session_id WHERE s.name = 'gone'"
            body = c.execute(query).fetchone()[0]
        assert body[-40:] in files(home)
        assert SECRET.encode() in files(home)
        await on.watch.service.remove_session("gone")
        assert body[-40:] not in files(home)
        assert SECRET.encode() not in files(home)
        assert [rows(home, t) for t in ("traces", "places", "request_ends")] == [1, 0, 1]
        await on.interrupt()
        await on.watch.service._keeper.ready()
        assert on.watch.service.generation.traces.newest_of("stays") is not None
        assert on.watch.service.generation.traces.newest_of("gone") is None

    run(home, "restart", work)


def test_what_waits_to_be_written_of_a_removed_session_is_not_written(home: Path) -> None:
    async def work(on: Life) -> None:
        await on.watch.ask(ask(*TURNS, session="gone"))
        await on.watch.service.remove_session("gone")
        await on.watch.service._thread.settled()
        assert [rows(home, t) for t in ("traces", "places", "request_ends", "sessions")] == [0, 0, 0, 0]

    run(home, "restart", work)


def test_a_fork_goes_on_from_its_part_of_the_path_also_when_its_parent_is_gone(home: Path) -> None:
    async def work(on: Life) -> None:
        told = list(TURNS)
        await on.watch.ask(ask(*told, session="s", edit_reuse="drop"))
        del told[3]
        first = await on.watch.ask(ask(*told, user("on"), session="s", edit_reuse="drop"))
        assert first.job.route.path.ops
        count = len(told) - 2
        await on.watch.service.fork_session("s", native.ForkRequest(name="f", at_message=count))
        whole = await on.watch.service.fork_session("s", native.ForkRequest(name="whole"))
        assert whole.messages == len(told) + 2
        await on.watch.service.remove_session("s")
        await on.interrupt()
        await on.watch.service._keeper.ready()
        known = on.watch.service.generation.traces.newest_of("f")
        assert known is not None
        assert known.messages == tuple(told[:count])
        assert "".join(map(chr, known.trace.tokens)).replace("Ā", "<|im_end|>").replace("ā", "<|im_start|>") == (
            rendered(told[:count]).removesuffix("<|im_start|>assistant\n")
        )
        done = await on.watch.ask(ask(*told[:count], user("else"), session="f", edit_reuse="drop"))
        assert done.shown == rendered([*told[:count], user("else")])
        edited = next(r for r in done.job.routes if r.kind == "edited")
        assert edited.path.ops == known.trace.path.ops
        again = on.watch.service.generation.traces.newest_of("whole")
        assert again is not None
        assert again.trace.path.tokens[: len(first.job.route.path.tokens)] == first.job.route.path.tokens

    run(home, "restart", work)


def test_a_trace_that_was_changed_on_disk_is_not_gone_on_from_and_the_others_are(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(on: Life) -> None:
        for session in ("a", "b"):
            await on.watch.ask(ask(*TURNS, user(session), session=session))
        await on.stack.aclose()
        with closing(sqlite3.connect(home / "store" / "akashic.db")) as c:
            body, row = c.execute("SELECT body, max(id) FROM traces").fetchone()
            c.execute("UPDATE traces SET body = ? WHERE id = ?", (bytes([body[0] ^ 1]) + body[1:], row))
            c.commit()
        await on.begin()
        done = await on.watch.ask(ask(*TURNS, user("b"), user("more"), session="b"))
        assert done.shown == rendered([*TURNS, user("b"), user("more")])
        assert on.watch.service.generation.traces.newest_of("a") is not None
        report = await on.watch.service.verify_store()
        assert report.findings == []  # the request wrote it anew

    run(home, "restart", work)
    assert [r.message for r in caplog.records if "session b computed" in r.message and "changed on disk" in r.message]


def test_what_cannot_be_written_is_said_in_the_status_until_it_can(home: Path) -> None:
    async def work(on: Life) -> None:
        refuse = mock.Mock(side_effect=StoreUnwritable("the disk is full"))
        with mock.patch.object(BookStore, "write", refuse):
            done = await on.watch.ask(ask(*TURNS, session="s"))
            await on.watch.service._thread.settled()
        assert done.finished.text
        warnings = (await on.watch.service.status()).warnings
        assert any("kept for the next start could not be written: the disk is full" in w for w in warnings)
        await on.watch.ask(ask(*TURNS, session="s"))
        await on.watch.service._thread.settled()
        assert (await on.watch.service.status()).warnings == []

    run(home, "restart", work)


async def miss_after(on: Life, told: list[Message], model: str | None = None) -> native.Miss | None:
    done = await on.watch.ask(ask(*told, session="s", model=model))
    assert done.shown == rendered(told)
    told += [assistant(done.finished.text or "x"), user("more")]
    return done.finished.reuse.miss


PARTS: Mapping[str, tuple[str, str, str]] = {
    "kv_type": ("f16", "q8_0", "KV type f16 -> q8_0"),
    "weights": (f"weights1:{'0' * 32}", f"weights1:{'1' * 32}", "model file changed"),
    "rope": ("freq_base=1", "freq_base=2", "rope parameters freq_base=1 -> freq_base=2"),
    "fused_attention": ("off", "on", "fused attention off -> on"),
    "build": ("1", "2", "engine version 1 -> 2"),
    "layout_version": ("3", "4", "layout version of KV 3 -> 4"),
    "tokenizer": (f"tokenizer1:{'0' * 32}", f"tokenizer1:{'1' * 32}", "tokenizer changed"),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_changed_of_the_model_is_said_once_and_not_when_the_old_one_comes_back(home: Path, part: str) -> None:
    old, new, said = PARTS[part]
    made = {"engine": "fake", part: old}

    async def work(on: Life) -> None:
        told = list(TURNS)
        await miss_after(on, told)
        made[part] = new
        await on.interrupt()
        miss = await miss_after(on, told)
        assert miss is not None
        assert (miss.cause, miss.detail, miss.at_token) == ("model_changed", said, 0)
        assert miss.could_reuse > 300
        explained = await on.watch.service.context.explanation("s", None)
        assert explained.miss == miss
        assert (await on.watch.service.stats()).miss_causes == {"model_changed": 1}
        assert await miss_after(on, told) is None
        made[part] = old
        await on.interrupt()
        back = await miss_after(on, told)
        assert back is not None
        assert (back.cause, back.detail) == ("evicted", None)

    run(home, "kill", work, make=lambda name, _p: Named(name, parts=made))


def test_another_model_in_between_is_named_and_the_first_one_goes_on_from_its_own_path(home: Path) -> None:
    async def work(on: Life) -> None:
        told = list(TURNS)
        await miss_after(on, told)
        miss = await miss_after(on, told, "b")
        assert miss is not None
        assert (miss.cause, miss.detail) == ("model_changed", "model a -> b")
        for model in ("a", "b", "a"):
            back = await miss_after(on, told, model)
            assert back is not None
            assert back.cause == "evicted"

    run(home, "restart", work)


def test_another_template_of_the_same_weights_is_named(home: Path) -> None:
    changed: list[bool] = []

    def make(name: str, _path: Path) -> Named:
        engine = Named(name)
        if changed and engine.template is not None:
            engine.template = engine.template.replace("<|im_end|>", "<|im_end|> ", 1)
        return engine

    async def work(on: Life) -> None:
        told = list(TURNS)
        await on.watch.ask(ask(*told, session="s"))
        changed.append(True)
        await on.interrupt()
        done = await on.watch.ask(ask(*told, user("more"), session="s"))
        miss = done.finished.reuse.miss
        assert miss is not None
        assert (miss.cause, miss.detail) == ("model_changed", "chat template changed")
        told += [user("more"), assistant(done.finished.text), user("on")]
        assert (await on.watch.ask(ask(*told, session="s"))).finished.reuse.miss is None

    run(home, "restart", work, make=make)


def test_the_default_model_does_not_take_the_place_of_one_that_was_asked_for_at_once(home: Path) -> None:
    async def work() -> None:
        async with running_service(home, named, models=("a", "b")) as service:
            await answer(service, ask(user("q"), model="b"))
            await service.get_model("a")
            assert service._host.loaded == "b"

    with driven():
        asyncio.run(work())
