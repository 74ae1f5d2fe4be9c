"""A model of another server behind the daemon: sessions, reuse, misses, operations, faults and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.api.metrics import metrics_text
from akashic_daemon.config import load
from akashic_daemon.errors import BadRequest, Unsupported, UpstreamError
from akashic_daemon.paths import find_paths
from akashic_daemon.protocol.native import AddModelRequest, RemotePlace, TurnRequest
from akashic_daemon.schedule.events import Finished, GenerationInput, Started, TextDelta, ThinkingDelta, ToolCallDelta
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from fake_service import answer, ask, assistant, user
from memory_service import FACTS, fill
from remote_server import URL, Answer, Upstream, refuses, streams, text_piece, unreachable, usage_piece

PARROT = "What does the parrot eat?"
Check = Callable[[Service], Awaitable[None]]


def says(*words: str, prompt: int = 10, cached: int | None = 0, reason: str = "stop") -> Answer:
    """Return an answer of these words with its usage."""
    pieces = [*(text_piece(word) for word in words), text_piece("", finish_reason=reason)]
    return streams([*pieces, usage_piece(prompt, len(words), cached)])


def on_remote(
    home: Path, upstream: Upstream, check: Check, *, flags: dict[str, Any] | None = None, **place: Any
) -> None:
    """Run `check` on a service whose default model is `upstream`."""

    async def run() -> None:
        settings = load(
            home / "config.toml", env={}, flags={"remote.retry_s": 1.0, "memory.chat": False, **(flags or {})}
        )
        paths = find_paths({"AKASHIC_HOME": str(home)})
        service = Service(settings, paths, engine_factory=_no_engine, remote_client=upstream.client)
        await service.start()
        try:
            remote = RemotePlace(url=URL, **{"model": "big", **place})
            await service.add_model(AddModelRequest(remote=remote, name="far", default=True))
            await check(service)
        finally:
            await service.stop()

    asyncio.run(run())


def _no_engine(name: str, _path: Path) -> Any:
    raise UpstreamError(f"loading {name}: nothing is to be loaded here")


async def events_of(service: Service, request: GenerationInput) -> list[Any]:
    async with aclosing(service.generate(request)) as events:
        return [event async for event in events]


def test_an_answer_streams_and_its_session_goes_on(home: Path) -> None:
    upstream = Upstream([says("Par", "rots", prompt=20), says("Yes", prompt=40, cached=22)])

    async def check(service: Service) -> None:
        events = await events_of(service, ask(user("Which birds talk?")))
        assert [type(e) for e in events] == [Started, TextDelta, TextDelta, Finished]
        done = events[-1]
        assert (done.text, done.finish_reason, done.prompt_tokens, done.completion_tokens) == ("Parrots", "stop", 20, 2)
        assert (done.reuse.reused_tokens, done.reuse.computed_tokens) == (0, 20)
        assert done.reuse.miss is not None
        assert done.reuse.miss.cause == "cold"
        history = [user("Which birds talk?"), assistant("Parrots"), user("All of them?")]
        again = await answer(service, ask(*history))
        assert again.reuse.session == done.reuse.session
        assert (again.reuse.reused_tokens, again.reuse.computed_tokens, again.reuse.miss) == (22, 18, None)
        stored = await service.sessions.export_session(done.reuse.session)
        assert [m.content for m in stored] == ["Which birds talk?", "Parrots", "All of them?", "Yes"]

    on_remote(home, upstream, check)
    first, second = upstream.bodies()
    assert first["model"] == "big"
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert {r.headers["x-session-id"] for r in upstream.requests} == {upstream.requests[0].headers["x-session-id"]}


def test_what_other_servers_compute_is_counted_like_what_is_computed_here(home: Path) -> None:
    upstream = Upstream([says("Par", "rots", prompt=20), says("Yes", prompt=40, cached=22), refuses(400)])

    async def check(service: Service) -> None:
        history = [user("Which birds talk?"), assistant("Parrots"), user("All of them?")]
        await answer(service, ask(history[0]))
        await answer(service, ask(*history))
        with pytest.raises(BadRequest):
            await answer(service, ask(user("nonsense")))
        stats = await service.stats()
        assert (stats.requests_total, stats.remote_requests_total, stats.requests_failed_total) == (3, 3, 1)
        assert (stats.prompt_tokens_total, stats.reused_tokens_total, stats.computed_tokens_total) == (60, 22, 38)
        assert stats.generated_tokens_total == 3
        assert stats.miss_causes == {"cold": 1}
        page = metrics_text(stats, service.distributions)
        for line in (
            "akashic_requests_total 3",
            "akashic_remote_requests_total 3",
            'akashic_prefix_cache_hits_total{tier="remote"} 22',
            'akashic_request_success_total{finished_reason="stop"} 2',
            "akashic_time_to_first_token_seconds_count 2",
            "akashic_inter_token_latency_seconds_count 1",
        ):
            assert line in page.splitlines()

    on_remote(home, upstream, check)


def test_an_answer_that_its_client_left_counts_as_cancelled(home: Path) -> None:
    upstream = Upstream([streams([text_piece("a")], after="hang")])

    async def check(service: Service) -> None:
        async with aclosing(service.generate(ask(user("hi")))) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        stats = await service.stats()
        assert (stats.requests_total, stats.requests_cancelled_total, stats.requests_failed_total) == (1, 1, 0)
        assert service.distributions.ends == {"cancelled": 1}

    on_remote(home, upstream, check)


def test_a_longer_history_goes_on_from_the_very_bytes_of_the_shorter_one(home: Path) -> None:
    upstream = Upstream([says("a")])
    call = ToolCall("c1", "run", '{"b":1,  "a": "é"}')
    history = [
        Message(Role.SYSTEM, "sys"), user("do"), Message(Role.ASSISTANT, "", tool_calls=(call,)),
        Message(Role.TOOL, "done", tool_call_id="c1"),
    ]  # fmt: skip
    tools = ({"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}},)

    async def check(service: Service) -> None:
        await answer(service, ask(*history, tools=tools, session="s"))
        await answer(service, ask(*history, assistant("a"), user("more"), tools=tools, session="s"))

    on_remote(home, upstream, check)
    first, second = (r.content for r in upstream.requests)
    shared = first[
        : first.index(b"]", first.index(b'"messages"') + first[first.index(b'"messages"') :].rindex(b"}],") + 1)
    ]
    assert second.startswith(shared)
    assert '"arguments":"{\\"b\\":1,  \\"a\\": \\"é\\"}"'.encode() in first


def test_what_the_model_thought_comes_first_and_goes_back_with_the_next_turn(home: Path) -> None:
    thoughts = [{"choices": [{"delta": {"reasoning_content": part}}]} for part in ("so ", "it is")]
    upstream = Upstream([streams([*thoughts, text_piece("yes"), usage_piece(9, 3, 0)]), says("ok")])

    async def check(service: Service) -> None:
        events = await events_of(service, ask(user("is it?"), session="s"))
        assert [type(e) for e in events] == [Started, ThinkingDelta, ThinkingDelta, TextDelta, Finished]
        assert (events[-1].text, events[-1].thinking, events[-1].thinking_tokens) == ("yes", "so it is", 2)
        history = await service.sessions.export_session("s")
        assert history[-1].thinking == "so it is"
        await answer(service, ask(*history, user("sure?"), session="s"))

    on_remote(home, upstream, check)
    assert upstream.bodies()[1]["messages"][1]["reasoning_content"] == "so it is"


def test_a_tool_call_comes_in_pieces_and_is_remembered_by_its_bytes(home: Path) -> None:
    pieces = [
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c9", "function": {"name": "run", "arguments": '{"x"'}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":  1}"}}]}, "finish_reason": "tool_calls"}]},
        usage_piece(9, 5, None),
    ]  # fmt: skip
    upstream = Upstream([streams(pieces), says("ok")])

    async def check(service: Service) -> None:
        events = await events_of(service, ask(user("go"), session="s"))
        assert [e.arguments for e in events if isinstance(e, ToolCallDelta)] == ['{"x"', ":  1}"]
        done = events[-1]
        assert done.finish_reason == "tool_calls"
        assert done.tool_calls == (ToolCall("c9", "run", '{"x":  1}'),)
        assert "the server doesn't say what it reused" in done.reuse.notes
        retold = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c9", "run", '{"x": 1}'),))
        await answer(service, ask(user("go"), retold, Message(Role.TOOL, "1", tool_call_id="c9"), session="s"))

    on_remote(home, upstream, check)
    assert upstream.bodies()[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"x":  1}'


def test_why_the_server_computed_more_is_told(home: Path) -> None:
    first, second = [user("one " * 50)], [user("one " * 50), assistant("answer"), user("two " * 50)]
    edited = [user("ONE " * 50), assistant("answer"), user("two " * 50), assistant("answer"), user("three")]
    later = [*edited, assistant("answer"), user("four")]
    tokens = ((60, 0), (120, 0), (130, 0), (170, 130))
    upstream = Upstream([says(*"answer", prompt=prompt, cached=cached) for prompt, cached in tokens])

    async def check(service: Service) -> None:
        causes = []
        for history in (first, second, edited, later):
            done = await answer(service, ask(*history, session="s"))
            assert done.reuse.miss is not None
            causes.append((done.reuse.miss.cause, done.reuse.miss.at_message))
        assert causes == [("cold", None), ("evicted", None), ("text_differs", 0), ("tokenization_differs", 5)]
        told = await service.context.explanation("s", None)
        assert told.notes[-1].startswith("tokens of messages are estimates")
        assert sum(s.tokens for s in told.segments) == pytest.approx(170, abs=len(later))

    on_remote(home, upstream, check)


def test_operations_are_applied_to_the_text_or_passed_on_as_the_model_was_added(home: Path) -> None:
    history = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    request = ask(*history, session="s", cache_ops=({"op": "drop", "messages": [0, 1]},))
    as_text, passed = Upstream([says("x")]), Upstream([says("x")])

    async def in_text(service: Service) -> None:
        done = await answer(service, request)
        assert any("applied to the text" in note for note in done.reuse.notes)
        assert done.reuse.dropped_tokens > 0

    async def passing(service: Service) -> None:
        done = await answer(service, replace(request, session="t", cache_ops=(), drop_message={"0": [1]}))
        assert "cache operations were passed on to the server" in done.reuse.notes

    on_remote(home, as_text, in_text)
    assert [m["content"] for m in as_text.bodies()[0]["messages"]] == ["c", "d", "e"]
    on_remote(home, passed, passing, passes_ops=True, model="other")
    body = passed.bodies()[0]
    assert [m["content"] for m in body["messages"]] == [m.content for m in history]
    assert body["drop_message"] == {"0": [1]}


def test_the_settings_policy_holds_for_requests_and_leaves_turns_alone(home: Path) -> None:
    told = [user("a"), *(m for i in range(4) for m in _called(i)), user("e")]
    upstream = Upstream([says("x"), says("y")])

    async def check(service: Service) -> None:
        done = await answer(service, ask(*told, session="s"))
        assert done.reuse.policy is not None
        assert done.reuse.policy.startswith("tool-rolling-drop:keep=1")
        assert done.reuse.dropped_tokens > 0
        async with aclosing(service.turn("s", TurnRequest(prompt="now?"))) as events:
            last = [e async for e in events][-1]
        assert last.reuse is not None
        assert (last.reuse.policy, last.reuse.dropped_tokens) == (None, 0)

    on_remote(home, upstream, check, flags={"cache.policy": "tool-rolling-drop:keep=1"})
    first, second = (sum(m["content"] == "[removed]" for m in body["messages"]) for body in upstream.bodies())
    assert (first, second) == (3, 0)


def _called(number: int) -> list[Message]:
    call = ToolCall(f"call_{number}", "look", "{}")
    found = Message(Role.TOOL, f"found {number} " * 20, tool_call_id=call.id)
    return [Message(Role.ASSISTANT, "", tool_calls=(call,)), found]


def test_a_server_that_is_away_is_an_error_and_the_session_goes_on_when_it_is_back(home: Path) -> None:
    upstream = Upstream([says("a"), unreachable, unreachable, unreachable, unreachable, says("b")])

    async def check(service: Service) -> None:
        await service.sessions.begin_turn("s", "first", "")

        async def turn(prompt: str) -> str:
            async with aclosing(service.turn("s", TurnRequest(prompt=prompt))) as events:
                return [e async for e in events][-1].text

        assert await turn("one") == "a"
        before = await service.sessions.export_session("s")
        with pytest.raises(UpstreamError, match="is the server running"):
            await turn("two")
        assert await service.sessions.export_session("s") == before
        upstream.answers = [says("b")]
        assert await turn("two") == "b"

    on_remote(home, upstream, check)


def test_what_came_of_an_answer_that_broke_off_is_kept(home: Path) -> None:
    upstream = Upstream([streams([text_piece("half "), text_piece("an")], "cut")])

    async def check(service: Service) -> None:
        with pytest.raises(UpstreamError, match="broke off"):
            await answer(service, ask(user("tell"), session="s"))
        assert [m.content for m in await service.sessions.export_session("s")] == ["tell", "half an"]

    on_remote(home, upstream, check)


def test_a_session_longer_than_the_window_is_cut_to_it_and_that_is_told(home: Path) -> None:
    upstream = Upstream([says("a", prompt=100)])
    turns: Sequence[Message] = [m for i in range(40) for m in (user(f"{i} " * 40), assistant(f"re {i} " * 20))]

    async def check(service: Service) -> None:
        await service.sessions.book.record(
            "s", [Message(Role.SYSTEM, "sys"), *turns], None, [], origin="import", since_removals=0
        )
        async with aclosing(service.turn("s", TurnRequest(prompt="now?", max_tokens=50))) as events:
            done = [e async for e in events][-1]
        assert done.reuse is not None
        assert done.reuse.left_out_messages > 10
        assert done.reuse.left_out_tokens > 500

    on_remote(home, upstream, check, window_tokens=1000)
    sent = upstream.bodies()[0]["messages"]
    assert (sent[0]["role"], sent[1]["role"], sent[-1]["content"]) == ("system", "user", "now?")
    assert sum(len(m["content"]) for m in sent) < 4000


def test_what_needs_the_cache_here_is_refused_by_name(home: Path) -> None:
    async def check(service: Service) -> None:
        await answer(service, ask(user("hi"), session="s"))
        with pytest.raises(Unsupported, match=r"computed by http://upstream\.test"):
            await service.context.show("s")
        summary = (await service.list_models()).models
        assert [(m.name, m.remote, m.path) for m in summary if m.remote] == [("far", True, URL)]
        assert (await service.get_model("far")).why_not.keys() == {"drop", "repos"}

    on_remote(home, Upstream([says("a")]), check)


def test_a_continued_answer_is_one_message_and_what_continues_it_is_no_miss(home: Path) -> None:
    upstream = Upstream([says(" and rest", prompt=20), says("ok", prompt=40, cached=21)])

    async def check(service: Service) -> None:
        begun = ask(user("go on"), assistant("the first"), session="s", continue_final=True)
        assert (await answer(service, begun)).text == " and rest"
        history = await service.sessions.export_session("s")
        assert [m.content for m in history] == ["go on", "the first and rest"]
        assert (await answer(service, ask(*history, user("more"), session="s"))).reuse.miss is None

    on_remote(home, upstream, check)
    assert upstream.bodies()[0]["continue_final_message"] is True


def test_where_the_prompt_begins_is_kept_as_a_place_in_the_whole_history(home: Path) -> None:
    upstream = Upstream([says("a", prompt=100)])
    turns = [m for i in range(40) for m in (user(f"{i} " * 40), assistant(f"re {i} " * 20))]

    async def check(service: Service) -> None:
        await service.sessions.book.record("s", turns, None, [], origin="import", since_removals=0)
        operations = ({"op": "drop", "messages": list(range(10, 20)), "at": 40},)
        request = ask(*turns, user("now?"), session="s", cache_ops=operations)
        model = await service.models.resolve(None)
        async with aclosing(service._remote.generate(model, request, window_start=0)) as events:
            _ = [event async for event in events]
        start = await service.sessions.window_start("s")
        assert upstream.bodies()[0]["messages"][0]["content"] == turns[start].content

    on_remote(home, upstream, check, window_tokens=1000)


def test_a_server_that_counts_nothing_is_told_of(home: Path) -> None:
    async def check(service: Service) -> None:
        done = await answer(service, ask(user("hi")))
        assert any("its tokens are estimates" in note for note in done.reuse.notes)

    on_remote(home, Upstream([streams([text_piece("a", finish_reason="stop")])]), check)


def test_memory_stands_before_the_question_for_a_remote_model_too(home: Path) -> None:
    upstream = Upstream([says("mangoes", prompt=60), says("yes", prompt=90, cached=60)])

    async def check(service: Service) -> None:
        await fill(service)
        await answer(service, ask(user(PARROT), memory=True))
        await answer(service, ask(user(PARROT), assistant("mangoes"), user("Sure?"), memory=True))

    on_remote(home, upstream, check)
    first, second = (body["messages"] for body in upstream.bodies())
    assert FACTS[0] in first[0]["content"]
    assert first[-1]["content"] == PARROT
    assert second[: len(first)] == first


def test_a_server_of_several_models_must_be_asked_for_one(home: Path) -> None:
    import httpx

    listing: Answer = lambda _request: httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]})  # noqa: E731

    async def check(service: Service) -> None:
        with pytest.raises(BadRequest, match="serves 2 models: a, b"):
            await answer(service, ask(user("hi")))

    on_remote(home, Upstream([listing]), check, model="")
