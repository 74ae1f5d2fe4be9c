"""The service on the fake engine, whose every token depends on all that it sees: a leak or a wrong reuse changes text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import EngineError, NotFound, Overloaded, PromptTooLong
from akashic_daemon.protocol import native
from akashic_daemon.schedule.events import Finished, GenerationEvent, GenerationInput, Started, TextDelta
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from fake_service import NEVER, answer, ask, assistant, fresh_answer, running_service, user
from watched_service import driven

SYSTEM = Message(Role.SYSTEM, "You are terse and exact. " * 20)


async def talk_until(service: Service, request: GenerationInput, texts: int) -> str:
    """Take some of an answer, then leave; return what was heard."""
    heard = ""
    async with aclosing(service.generate(request)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                heard += event.text
                texts -= 1
                if not texts:
                    break
    return heard


async def keep_talking(service: Service, request: GenerationInput, started: asyncio.Event) -> None:
    """Run a request that doesn't end by itself."""
    async with aclosing(service.generate(request)) as events:
        async for event in events:
            if isinstance(event, Started):
                started.set()


def endless() -> FakeEngine:
    return FakeEngine(kv_cells=1 << 20, window_tokens=1 << 18, end_every=NEVER)


def test_the_next_turn_computes_only_what_is_new(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            history = [SYSTEM, user("first question")]
            first = await answer(service, ask(*history))
            assert first.reuse.miss is not None
            assert first.reuse.miss.cause == "cold"
            for turn in range(4):
                history += [assistant(first.text), user(f"question {turn}")]
                new = len(f"{first.text}question {turn}") + len("<>user\n<>\n<>assistant\n")
                first = await answer(service, ask(*history))
                assert first.text == fresh_answer(history, 20)
                assert first.reuse.computed_tokens <= new + 128
                assert first.reuse.reused_tokens + first.reuse.computed_tokens == first.prompt_tokens
                assert first.reuse.miss is None

    asyncio.run(run())


def test_two_sessions_share_one_computed_system_prompt(home: Path) -> None:
    engine = FakeEngine()

    async def run() -> None:
        async with running_service(home, lambda _n, _p: engine) as service:
            await answer(service, ask(SYSTEM, user("alpha"), session="one"))
            other = await answer(service, ask(SYSTEM, user("beta"), session="two"))
            assert other.reuse.reused_tokens >= len(SYSTEM.content)
            assert other.text == fresh_answer([SYSTEM, user("beta")], 20)
            assert engine.used_cells() < 2 * len(SYSTEM.content)

    asyncio.run(run())


def test_requests_that_arrive_together_compute_their_common_prefix_once(home: Path) -> None:
    engine = FakeEngine()

    async def run() -> None:
        async with running_service(home, lambda _n, _p: engine) as service:
            asked = [[SYSTEM, user(f"number {i}")] for i in range(6)]
            done = await asyncio.gather(*(answer(service, ask(*m)) for m in asked))
            assert [d.text for d in done] == [fresh_answer(m, 20) for m in asked]
            assert sum(engine.computed) < 2 * len(SYSTEM.content)

    asyncio.run(run())


def test_an_edited_history_reuses_up_to_the_edit_and_says_where(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            await answer(service, ask(SYSTEM, user("the time is 12:30"), session="s"))
            edited = [SYSTEM, user("the time is 12:31")]
            done = await answer(service, ask(*edited, session="s"))
            assert done.text == fresh_answer(edited, 20)
            assert done.reuse.miss is not None
            assert done.reuse.miss.at_message == 1
            assert done.reuse.reused_tokens == done.reuse.miss.at_token

    asyncio.run(run())


def test_a_cancelled_answer_is_kept_and_reused(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: endless()) as service:
            request = ask(SYSTEM, user("tell me all"), session="s", max_tokens=None)
            heard = await talk_until(service, request, 10)
            kept = (await service.export_session("s"))[-1]
            assert kept.role is Role.ASSISTANT
            assert kept.content.startswith(heard)
            assert (await service.stats()).activity == []
            history = [SYSTEM, user("tell me all"), assistant(kept.content), user("go on")]
            done = await answer(service, ask(*history, session="s"))
            assert done.reuse.miss is None
            assert done.reuse.computed_tokens <= len("go on") + 128
            assert done.text == fresh_answer(history, 20, end_every=NEVER)

    asyncio.run(run())


@pytest.mark.parametrize(("kv_cells", "sequences"), [(400, 8), (700, 3), (4096, 2)])
def test_more_sessions_than_cells_or_sequences_still_say_what_a_fresh_engine_says(
    home: Path, kv_cells: int, sequences: int
) -> None:
    """Invariant 2: the text of each session depends on its own tokens only, under concurrency and eviction."""
    engine = FakeEngine(kv_cells=kv_cells, max_sequences=sequences, window_tokens=350)

    async def converse(service: Service, number: int) -> None:
        history = [user(f"session {number} has a secret: {number * 7919}")]
        for turn in range(3):
            done = await answer(service, ask(*history, session=f"s{number}"))
            assert done.text == fresh_answer(history, 20), (number, turn)
            history += [assistant(done.text), user(f"and then, {number}?")]

    async def run() -> None:
        async with running_service(home, lambda _n, _p: engine) as service:
            await asyncio.gather(*(converse(service, n) for n in range(9)))
            assert engine.used_cells() <= kv_cells

    asyncio.run(run())


def test_a_failed_step_ends_only_its_requests_and_the_next_one_works(home: Path) -> None:
    engine = FakeEngine()

    async def run() -> None:
        async with running_service(home, lambda _n, _p: engine) as service:
            await answer(service, ask(SYSTEM, user("warm up")))
            engine.fail_next = 1
            with pytest.raises(EngineError, match="told to fail"):
                await answer(service, ask(SYSTEM, user("hello")))
            done = await answer(service, ask(SYSTEM, user("hello")))
            assert done.text == fresh_answer([SYSTEM, user("hello")], 20)
            assert done.reuse.reused_tokens >= len(SYSTEM.content)
            assert (await service.stats()).activity == []

    asyncio.run(run())


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(window_tokens=100)) as service:
            with pytest.raises(PromptTooLong) as caught:
                await answer(service, ask(user("x" * 200)))
            assert caught.value.details["n_ctx"] == 100
            assert caught.value.details["n_prompt_tokens"] > 200
            assert "100" in caught.value.message

    asyncio.run(run())


def test_stopping_ends_a_running_answer_and_stores_what_it_had_said(home: Path) -> None:
    async def run() -> None:
        request = ask(user("go"), max_tokens=None, session="kept")
        async with running_service(home, lambda _n, _p: endless()) as service:
            events = service.generate(request)
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            rest = asyncio.create_task(_collect(events))
        last = (await asyncio.wait_for(rest, 30))[-1]
        assert isinstance(last, Finished)
        assert last.finish_reason == "cancelled"
        async with running_service(home, lambda _n, _p: endless()) as service:
            stored = await service.export_session("kept")
        assert [m.content for m in stored] == ["go", last.text]
        assert last.text

    asyncio.run(run())


def test_a_bug_in_a_step_ends_its_requests_and_the_loop_goes_on(home: Path) -> None:
    engine = FakeEngine()

    async def run() -> None:
        async with running_service(home, lambda _n, _p: engine) as service:
            decode = engine.decode

            def broken(batch: Sequence[BatchItem]) -> None:
                raise ZeroDivisionError

            engine.decode = broken  # type: ignore[method-assign]
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await asyncio.wait_for(answer(service, ask(user("hello"))), 30)
            engine.decode = decode  # type: ignore[method-assign]
            done = await asyncio.wait_for(answer(service, ask(user("hello"), max_tokens=8)), 30)
        assert done.text == fresh_answer([user("hello")], 8)

    asyncio.run(run())


async def _collect(events: AsyncIterator[GenerationEvent]) -> list[GenerationEvent]:
    return [event async for event in events]


def test_one_request_more_than_the_queue_holds_is_refused(home: Path) -> None:
    flags = {"schedule.max_running": 1, "schedule.max_queued": 1}

    async def run() -> None:
        async with running_service(home, lambda _n, _p: endless(), flags=flags) as service:
            started = asyncio.Event()
            requests = [ask(user(f"go {i}"), max_tokens=None) for i in range(3)]
            tasks = [asyncio.create_task(keep_talking(service, requests[0], started))]
            await asyncio.wait_for(started.wait(), 30)
            tasks += [asyncio.create_task(keep_talking(service, r, started)) for r in requests[1:]]
            done, _ = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1
            with pytest.raises(Overloaded, match="1 requests are waiting"):
                done.pop().result()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, Overloaded):
                    await task

    asyncio.run(run())


def test_a_model_is_swapped_when_the_last_request_on_the_other_has_ended(home: Path) -> None:
    loaded: list[str] = []

    def make(name: str, _path: Path) -> FakeEngine:
        loaded.append(name)
        return FakeEngine(end_every=29 if name == "a" else 31, fingerprint=name)

    async def run() -> None:
        async with running_service(home, make, models=("a", "b")) as service:
            warm = []
            for name, end_every in (("a", 29), ("b", 31), ("a", 29)):
                done = await answer(service, ask(user("who are you?"), model=name, max_tokens=60))
                assert done.text == fresh_answer([user("who are you?")], 60, end_every=end_every)
                warm.append(done.reuse.reused_tokens > 0)
            assert warm == [False, False, True], "what A computed survives B, and B sees none of it"
            assert loaded == ["a", "b", "a"]
            both = [ask(user(f"q{i}"), model="ab"[i % 2]) for i in range(6)]
            texts = [d.text for d in await asyncio.gather(*(answer(service, r) for r in both))]
            assert texts == [fresh_answer([user(f"q{i}")], 20, end_every=29 + 2 * (i % 2)) for i in range(6)]

    asyncio.run(run())


def test_an_unknown_model_is_refused_with_the_known_ones(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            with pytest.raises(NotFound, match="fake"):
                await answer(service, ask(user("hi"), model="nope"))

    asyncio.run(run())


def test_a_conversation_goes_on_after_a_restart_with_the_same_words(home: Path) -> None:
    async def turn(service: Service, text: str) -> native.TurnEvent:
        request = native.TurnRequest(prompt=text, max_tokens=20, system=SYSTEM.content)
        events = [e async for e in service.turn("diary", request)]
        assert events[0].kind == "start"
        return events[-1]

    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            first = await turn(service, "hello")
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            second = await turn(service, "still there?")
            history = await service.export_session("diary")
        assert [m.role.value for m in history] == ["system", "user", "assistant", "user", "assistant"]
        assert history[2].content == first.text
        assert second.text == fresh_answer(history[:-1], 20)

    asyncio.run(run())


def test_a_session_longer_than_the_window_goes_on_and_says_what_it_left_out(home: Path) -> None:
    async def run() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine(window_tokens=400)) as service:
            left_out = []
            for turn in range(12):
                request = native.TurnRequest(prompt=f"turn {turn} " + "." * 40, max_tokens=20)
                events = [e async for e in service.turn("long", request)]
                assert events[-1].kind == "done"
                assert events[-1].reuse is not None
                left_out.append(events[-1].reuse.left_out_messages)
            assert left_out[0] == 0
            assert left_out[-1] > 0
            assert left_out == sorted(left_out)
            assert len(set(left_out)) < 8, "the window moved at nearly every turn"

    asyncio.run(run())


def test_a_cancelled_request_in_the_queue_never_runs(home: Path) -> None:
    async def run() -> None:
        flags = {"schedule.max_running": 1}
        async with running_service(home, lambda _n, _p: endless(), flags=flags) as service:
            started, never = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(keep_talking(service, ask(user("go"), max_tokens=None), started))
            await asyncio.wait_for(started.wait(), 30)
            second = asyncio.create_task(keep_talking(service, ask(user("wait"), max_tokens=None), never))
            while (await service.stats()).queued == 0:
                await asyncio.sleep(0)
            second.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(second, 30)
            assert not never.is_set()
            assert (await service.stats()).queued == 0
            first.cancel()
            with suppress(asyncio.CancelledError):
                await first
            assert isinstance(await answer(service, ask(user("after"))), Finished)

    asyncio.run(run())


def test_a_transcript_that_is_read_again_is_the_session_that_it_was(home: Path, tmp_path: Path) -> None:
    told = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    file = tmp_path / "run.json"

    async def read(service: Service, messages: list[dict[str, str]], name: str | None = None) -> native.ImportEvent:
        file.write_text(json.dumps(messages))
        return [event async for event in service.import_transcript(file, format=None, name=name)][-1]

    async def work() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            first = await read(service, told)
            again = await read(service, told)
            assert again.sessions[0].session == first.sessions[0].session
            assert again.sessions[0].new_messages == 0
            named = await read(service, told, name="mine")
            assert named.sessions[0].session == "mine"
            longer = await read(service, [*told, {"role": "user", "content": "more"}])
            assert longer.sessions[0].session != first.sessions[0].session
            assert longer.sessions[0].new_messages == 1
            assert len((await service.list_sessions()).sessions) == 3

    asyncio.run(work())


def test_a_request_that_had_to_make_way_waits_until_another_ends(home: Path) -> None:
    async def work() -> None:
        engine = FakeEngine(kv_cells=140, end_every=NEVER)
        async with running_service(home, lambda _n, _p: engine) as service:
            for turn in range(5):
                asked = [user(f"{n} a question of some length, {turn}") for n in range(2)]
                requests = [ask(a, max_tokens=40, session=f"s{turn}-{n}") for n, a in enumerate(asked)]
                done = await asyncio.gather(*(answer(service, r) for r in requests))
                assert [d.completion_tokens for d in done] == [40, 40]
            assert 5 <= (await service.stats()).preempted_total <= 10

    with driven():
        asyncio.run(work())
