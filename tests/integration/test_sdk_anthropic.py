"""The `anthropic` package as a client, unchanged: over TCP to a daemon process on the fake engine, and to scripted answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from akashic_daemon.paths import find_paths
from akashic_daemon.schedule.events import TextDelta, ToolCallDelta
from akashic_daemon.trajectory.message import ToolCall
from echo_service import EchoService, finished
from fake_daemon import DEADLINE_S, daemon, free_port, on_socket
from fake_service import register
from served_app import scripted, served

BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={};"
WEATHER: Any = {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def client(home: Path) -> Iterator[anthropic.Anthropic]:
    register(home, ["fake"])
    port = free_port()
    with daemon(home, "--port", str(port)):
        token = (find_paths({"AKASHIC_HOME": str(home)}).store_dir / "token").read_text().strip()
        url = f"http://127.0.0.1:{port}"
        with anthropic.Anthropic(base_url=url, api_key=token, max_retries=0, timeout=DEADLINE_S) as made:
            yield made


def says(text: str) -> Any:
    return {"role": "user", "content": text}


def total(usage: Any) -> int:
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


def texts(message: Any) -> list[str]:
    return [block.text for block in message.content if block.type == "text"]


def test_a_conversation_of_claude_code_is_computed_once_and_counted_exactly(client: anthropic.Anthropic) -> None:
    system: Any = "You are a coder. " * 20
    history = [says("hello")]
    reused = []
    for turn in range(3):
        blocks: Any = [{"type": "text", "text": BILLING.format(turn)}, {"type": "text", "text": system}]
        request: Any = {"model": "fake", "system": blocks, "messages": history}
        counted = client.messages.count_tokens(**request)
        answer = client.beta.messages.create(max_tokens=20, metadata={"user_id": "u"}, **request)
        assert total(answer.usage) == counted.input_tokens
        reused.append(answer.usage.cache_read_input_tokens)
        assert answer.stop_reason == "max_tokens"
        assert (answer.model_extra or {})["akashic"]["notes"]
        assert answer.content[0].type == "text"
        history += [{"role": "assistant", "content": answer.content}, says("go on")]
    assert reused[0] == 0
    assert reused[1] >= len(system)
    assert reused[2] > reused[1] + 20


def test_a_stream_says_the_same_words_and_figures(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "fake", "max_tokens": 20, "messages": [says("hello")]}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text == "".join(texts(final))
    assert total(final.usage) == total(whole.usage)
    assert final.usage.output_tokens == whole.usage.output_tokens == 20
    assert final.stop_reason == whole.stop_reason


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    request: Any = {"model": "fake", "max_tokens": 20, "messages": [says("hello")]}
    first = client.messages.create(**request).content[0]
    assert first.type == "text"
    stop = first.text[5:8]
    ended = client.messages.create(**request, stop_sequences=[stop])
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", stop)


def test_a_client_that_leaves_its_stream_frees_the_request(client: anthropic.Anthropic, home: Path) -> None:
    with (
        on_socket(find_paths({"AKASHIC_HOME": str(home)})) as native,
        client.messages.stream(model="fake", max_tokens=200_000, messages=[says("talk")]) as stream,
    ):
        next(iter(stream.text_stream))
        assert len(_running(native)) == 1
        stream.close()
        _wait_until_idle(native)
        assert client.messages.create(model="fake", max_tokens=3, messages=[says("next")]).usage.output_tokens == 3


def _running(native: httpx.Client) -> list[Any]:
    return list(native.get("/akashic/v1/stats").json()["activity"])


def _wait_until_idle(native: httpx.Client) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while _running(native):
        assert time.monotonic() < deadline_s, "the request goes on without its client"


def test_an_async_client_that_is_cancelled_frees_its_requests(client: anthropic.Anthropic, home: Path) -> None:
    async def check() -> None:
        async with anthropic.AsyncAnthropic(
            base_url=client.base_url, api_key=client.api_key, max_retries=0, timeout=DEADLINE_S
        ) as other:
            asking = [
                asyncio.create_task(
                    other.messages.create(model="fake", max_tokens=100_000, messages=[says(f"talk {i}")])
                )
                for i in range(3)
            ]
            with on_socket(find_paths({"AKASHIC_HOME": str(home)})) as native:
                while len(await asyncio.to_thread(_running, native)) < 3:
                    assert not any(task.done() for task in asking)
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
                await asyncio.to_thread(_wait_until_idle, native)

    asyncio.run(asyncio.wait_for(check(), DEADLINE_S))


def test_errors_are_of_the_packages_own_kinds(client: anthropic.Anthropic) -> None:
    hello = [says("hello")]
    with pytest.raises(anthropic.NotFoundError, match=r"claude-9.*known: fake"):
        client.messages.create(model="claude-9", max_tokens=5, messages=hello)
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.create(model="fake", max_tokens=5, messages=[])
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 262144 maximum"):
        client.messages.create(model="fake", max_tokens=5, messages=[says("x" * 300_000)])
    image: Any = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"image.*model fake"):
        client.messages.create(model="fake", max_tokens=5, messages=image)
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model="fake", max_tokens=5, messages=hello)
    by_bearer = anthropic.Anthropic(base_url=client.base_url, auth_token=client.api_key, api_key=None)
    with by_bearer:
        assert by_bearer.messages.create(model="fake", max_tokens=2, messages=hello).usage.output_tokens == 2


def test_the_models_are_listed_in_the_packages_own_shape(client: anthropic.Anthropic) -> None:
    listed = client.models.list()
    assert "fake" in [model.id for model in listed]
    assert not listed.has_more
    assert client.models.retrieve("fake").display_name == "fake"
    with pytest.raises(anthropic.NotFoundError, match="claude-9"):
        client.models.retrieve("claude-9")


CALLS = (
    ToolCall("toolu_1", "get_weather", '{"city": "Paris"}'),
    ToolCall("toolu_2", "get_weather", '{"city": "Rome"}'),
)
SCRIPT = (
    TextDelta("Let me ", 2), TextDelta("look.", 1),
    ToolCallDelta(0, "", "toolu_1", "get_weather"), ToolCallDelta(0, '{"city": '), ToolCallDelta(0, '"Paris"}'),
    ToolCallDelta(1, '{"city": "Rome"}', "toolu_2", "get_weather"),
    replace(finished("Let me look.", 9, "tool_calls"), tool_calls=CALLS),
)  # fmt: skip


def test_parallel_calls_come_whole_and_streamed_alike_and_go_back_as_history(home: Path) -> None:
    with (
        served(scripted(home, SCRIPT)) as url,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client,
    ):
        request: Any = {"model": "m", "max_tokens": 50, "messages": [says("hi")], "tools": [WEATHER]}
        whole = client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        calls: list[Any] = [b for b in message.content if b.type == "tool_use"]
        assert [(c.id, c.name, c.input) for c in calls] == [
            ("toolu_1", "get_weather", {"city": "Paris"}),
            ("toolu_2", "get_weather", {"city": "Rome"}),
        ]
        assert message.stop_reason == "tool_use"
        assert texts(message) == ["Let me look."]
    service = EchoService(home)
    results: Any = [{"type": "tool_result", "tool_use_id": c.id, "content": "sunny"} for c in CALLS]
    with served(service) as url, anthropic.Anthropic(base_url=url, api_key="k") as client:
        answer: Any = {"role": "assistant", "content": streamed.content}
        history: Any = [says("hi"), answer, {"role": "user", "content": results}]
        client.messages.create(model="m", max_tokens=50, messages=history, tools=[WEATHER])
    said = service.requests[0].messages or ()
    assert [(c.id, c.name) for c in said[1].tool_calls] == [(c.id, c.name) for c in CALLS]
    assert [(m.role.value, m.tool_call_id) for m in said[2:]] == [("tool", "toolu_1"), ("tool", "toolu_2")]
