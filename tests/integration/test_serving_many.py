"""Many clients on few running sequences: whose turn it is, how long others wait, and that nothing of those who left stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import ValidationError

from akashic_daemon.api.fields import extension_fields
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import PromptTooLong
from akashic_daemon.protocol.openai import ChatCompletionRequest
from akashic_daemon.schedule.events import GenerationInput, Started
from akashic_daemon.schedule.request import Request
from akashic_daemon.service import Service
from fake_service import NEVER, answer, ask, fresh_answer, running_service, user
from leaks import assert_nothing_is_left
from tiers_service import LONG, TIERS, on_service, say, settled
from watched_service import driven

RUNNING = 4
FEW = {"schedule.max_running": RUNNING}


@contextmanager
def turns_of(service: Service) -> Iterator[list[tuple[Request, int]]]:
    """Collect each request with the number of steps for which it waited, in the order of their turns."""
    loop, waited = service._loop, []
    submit = loop.submit

    def watching(job: Request) -> None:
        queued, emit = loop._step_number, job.emit

        def heard(event: Any) -> None:
            if isinstance(event, Started):
                waited.append((job, loop._step_number - queued))
            emit(event)

        job.emit = heard
        submit(job)

    with mock.patch.object(loop, "submit", watching):
        yield waited


def engine(**options: Any) -> FakeEngine:
    return FakeEngine(**{"kv_cells": 1 << 14, "window_tokens": 1024, "max_sequences": 80, **options})


def run(home: Path, check: Any, *, flags: Mapping[str, Any] = FEW, **options: Any) -> None:
    """Run `check` on a service that takes one step between two turns of the event loop."""

    async def body() -> None:
        async with running_service(home, lambda _n, _p: engine(**options), flags=flags) as service:
            await answer(service, ask(user("load the model"), max_tokens=1))
            await check(service)

    with driven():
        asyncio.run(asyncio.wait_for(body(), 300))


def test_of_64_clients_on_4_sequences_all_finish_and_none_waits_three_times_the_mean(home: Path) -> None:
    async def check(service: Service) -> None:
        async def client(number: int) -> None:
            chance = random.Random(number)
            messages = [user(f"client {number} " + "x" * chance.randrange(60))]
            for _ in range(2):
                length = chance.randint(3, 20)
                done = await answer(service, ask(*messages, session=f"s{number}", max_tokens=length))
                assert done.text == fresh_answer(messages, length, end_every=NEVER)

        with turns_of(service) as waited:
            await asyncio.gather(*(client(n) for n in range(64)))
        steps = [wait for _, wait in waited]
        assert len(steps) == 128
        assert max(steps) <= 3 * sum(steps) / len(steps)

    run(home, check, end_every=NEVER)


def test_a_session_that_sends_forty_requests_at_once_does_not_hold_up_the_others(home: Path) -> None:
    async def check(service: Service) -> None:
        def one(name: str, i: int) -> Any:
            return answer(service, ask(user(f"{name} {i}"), session=name, max_tokens=5))

        with turns_of(service) as waited:
            greedy = [asyncio.ensure_future(one("greedy", i)) for i in range(40)]
            while not service._loop.busy:
                await asyncio.sleep(0)
            await asyncio.gather(*greedy, *(one(f"other{n}", i) for n in range(8) for i in range(2)))
        order = [job.session for job, _ in waited]
        assert len(order) == 56
        last = max(i for i, name in enumerate(order) if name != "greedy")
        assert order[:last].count("greedy") <= 2 * RUNNING + 4

    run(home, check)


def test_interactive_requests_go_before_those_that_wait_and_background_ones_after(home: Path) -> None:
    async def check(service: Service) -> None:
        def one(name: str, priority: str) -> Any:
            return answer(service, ask(user(name), session=name, max_tokens=12, priority=priority))

        with turns_of(service) as waited:
            names = [(f"{p}{n}", p) for p in ("background", "normal", "interactive") for n in range(4)]
            await asyncio.gather(one("first", "normal"), *(one(*n) for n in names))
        kinds = [str(job.session)[:-1] for job, _ in waited if job.session != "first"]
        assert kinds == ["interactive"] * 4 + ["normal"] * 4 + ["background"] * 4

    run(home, check, flags={"schedule.max_running": 1}, end_every=NEVER)


def test_fewer_run_together_when_their_tokens_fill_the_engine(home: Path) -> None:
    async def check(service: Service) -> None:
        most = []
        step = service._loop._step

        def watched() -> None:
            step()
            most.append(len(service._loop._running))

        with mock.patch.object(service._loop, "_step", watched):
            asked = [[user(f"{n} " + "y" * 60)] for n in range(24)]
            done = await asyncio.gather(
                *(answer(service, ask(*m, session=f"s{n}", max_tokens=120)) for n, m in enumerate(asked))
            )
        for messages, finished in zip(asked, done, strict=True):
            assert finished.text == fresh_answer(messages, 120, end_every=NEVER)
        limit = service._loop._admission.limit
        assert limit.halved_total
        assert (await service.stats()).engine.running_limit == limit.now
        assert max(most) > 3
        assert service._loop._counters.preempted_total < 24

    run(home, check, flags={"schedule.max_running": 16}, kv_cells=1024, end_every=NEVER)


def test_a_prompt_that_can_never_fit_is_refused_with_both_counts(home: Path) -> None:
    async def check(service: Service) -> None:
        with pytest.raises(PromptTooLong, match="the engine has 200 in all") as refused:
            await answer(service, ask(user("z" * 300)))
        assert refused.value.details["n_ctx"] == 200
        assert refused.value.details["n_prompt_tokens"] > 300

    run(home, check, kv_cells=200)


@pytest.mark.parametrize("phase", ["waits", "prefill", "decode"])
def test_a_cancelled_request_is_gone_after_one_step_wherever_it_stands(home: Path, phase: str) -> None:
    async def check(service: Service) -> None:
        loop, text = service._loop, "c" * (200 if phase == "prefill" else 20)
        ended: list[int] = []
        with turns_of(service):
            others = [asyncio.ensure_future(answer(service, ask(user(f"{n}"), max_tokens=80))) for n in range(4)]
            while len(loop._running) < (3 if phase != "waits" else RUNNING):
                await asyncio.sleep(0)
            if phase != "waits":
                others.pop().cancel()
            mine = asyncio.ensure_future(answer(service, ask(user(text), session="mine", max_tokens=200)))
            while not (found := [r for r in loop._all() if r.session == "mine"]):
                await asyncio.sleep(0)
            job, emit = found[0], found[0].emit

            def heard(event: Any) -> None:
                ended.append(loop._step_number)
                emit(event)

            job.emit = heard
            while phase != "waits" and job.state != phase:
                await asyncio.sleep(0)
            mine.cancel()
            while not job.cancelled:
                await asyncio.sleep(0)
            cancelled, computed = loop._step_number, len(job.generated)
            await asyncio.wait({mine})
            assert job.finish_reason == "cancelled"
            assert ended[-1] - cancelled <= 1
            assert len(job.generated) - computed <= 1
            await asyncio.gather(*others, return_exceptions=True)

    run(home, check, flags={**FEW, "schedule.prefill_tokens": 16, "schedule.prefill_tokens_busy": 8}, end_every=NEVER)


def test_a_request_says_its_priority_in_our_own_part_of_it() -> None:
    def sent(priority: str) -> GenerationInput:
        body = {"messages": [{"role": "user", "content": "x"}], "akashic": {"priority": priority}}
        return GenerationInput(text="x", **extension_fields(ChatCompletionRequest.model_validate(body).akashic))

    assert sent("background").priority == "background"
    with pytest.raises(ValidationError, match="interactive"):
        sent("urgent")


def test_the_log_has_a_line_for_each_request_and_nothing_of_what_it_says(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(service: Service) -> None:
        with caplog.at_level("INFO", "akashic.requests"), turns_of(service) as waited:
            await answer(service, ask(user("my-secret"), session="mine", max_tokens=5, priority="interactive"))
            with pytest.raises(PromptTooLong):
                await answer(service, ask(user("my-secret" * 50), session="mine"))
        done, refused = [r.getMessage() for r in caplog.records if r.name == "akashic.requests"]
        assert f"request={waited[0][0].id} session=mine model=fake priority=interactive end=length" in done
        assert "generated_tokens=5" in done
        assert "end=prompt_too_long" in refused
        assert "my-secret" not in caplog.text

    run(home, check, kv_cells=300, end_every=NEVER)


def test_after_a_thousand_random_cancels_no_sequence_block_task_promotion_or_buffer_is_left(home: Path) -> None:
    async def check(service: Service) -> None:
        chance = random.Random(7)
        await say(service, "warm", LONG[:300], max_tokens=2)
        before = asyncio.all_tasks()  # this one, and the service's own
        left: dict[str, int] = {}

        async def leave(number: int) -> None:
            text = LONG[: chance.randrange(120)] + str(number % 40)
            request = ask(user(text), session=f"s{number % 40}", max_tokens=200)
            until = chance.randrange(6)
            if not until:
                task = asyncio.ensure_future(answer(service, request))
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                left["at once"] = left.get("at once", 0) + task.cancelled()
                return
            async with aclosing(service.generate(request)) as events:
                async for event in events:
                    until -= 1
                    if not until:
                        left[type(event).__name__] = left.get(type(event).__name__, 0) + 1
                        break

        for first in range(0, 1000, 50):
            await asyncio.gather(*(leave(n) for n in range(first, first + 50)))
        assert {"at once", "Started", "Progress", "TextDelta"} <= set(left), left
        await settled(service)
        await service._host.on_engine_thread(lambda: None)
        assert_nothing_is_left(service)
        async with asyncio.timeout(180):
            while asyncio.all_tasks() - before:  # what was still being written down ends; else a task is leaked
                await asyncio.sleep(0.01)  # spinning would keep the store's thread from the interpreter
        assert service._loop._counters.requests_cancelled_total > 500, "only who left at once may not have come"
        text = LONG[:200]
        done = await answer(service, ask(user(text), session="after", max_tokens=10))
        assert done.text == fresh_answer([user(text)], 10, end_every=NEVER)

    flags = {**TIERS, **FEW, "schedule.prefill_tokens": 32, "cache.max_sequences": 24}
    on_service(home, check, flags=flags, kv_cells=1600)
