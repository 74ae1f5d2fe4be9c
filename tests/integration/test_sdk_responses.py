"""The `openai` package's Responses API as a client: over TCP to a daemon process on the fake engine, and to scripted answers."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from akashic_daemon.paths import find_paths
from akashic_daemon.schedule.events import TextDelta, ToolCallDelta
from akashic_daemon.trajectory.message import ToolCall
from echo_service import EchoService, finished
from fake_daemon import DEADLINE_S, daemon, free_port, on_socket
from fake_service import register
from served_app import scripted, served


@contextmanager
def running(home: Path) -> Iterator[openai.OpenAI]:
    """Run a daemon and give a client of it."""
    port = free_port()
    with daemon(home, "--port", str(port)):
        token = (find_paths({"AKASHIC_HOME": str(home)}).store_dir / "token").read_text().strip()
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key=token, max_retries=0, timeout=DEADLINE_S) as client:
            yield client


@pytest.fixture
def client(home: Path) -> Iterator[openai.OpenAI]:
    register(home, ["fake"])
    with running(home) as made:
        yield made


def test_a_response_is_continued_by_its_id_also_after_a_restart_and_reuses_what_was_computed(home: Path) -> None:
    register(home, ["fake"])
    said = "hello " * 30
    with running(home) as client:
        first = client.responses.create(model="fake", input=said, max_output_tokens=20, instructions="Be brief.")
        assert (first.status, first.incomplete_details and first.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
        assert first.usage is not None
        assert (first.usage.output_tokens, first.usage.input_tokens_details.cached_tokens) == (20, 0)
        assert first.usage.input_tokens + 20 == first.usage.total_tokens
    with running(home) as client:
        asked: Any = {"model": "fake", "previous_response_id": first.id, "input": "and then?"}
        counted = client.responses.input_tokens.count(**asked, instructions="Be brief.")
        second = client.responses.create(**asked, max_output_tokens=5, instructions="Be brief.")
        assert second.previous_response_id == first.id
        assert second.usage is not None
        assert second.usage.input_tokens == counted.input_tokens
        history: Any = [{"role": "user", "content": said}, *first.output, {"role": "user", "content": "and then?"}]
        alike = client.responses.input_tokens.count(
            model="fake", input=[_as_input(item) for item in history], instructions="Be brief."
        )
        assert alike.input_tokens == counted.input_tokens
        third = client.responses.create(
            model="fake", previous_response_id=second.id, input="more", max_output_tokens=5, instructions="Be brief."
        )
        assert third.usage is not None
        assert third.usage.input_tokens_details.cached_tokens >= second.usage.input_tokens


def _as_input(item: Any) -> Any:
    return item if isinstance(item, dict) else item.model_dump()


def test_a_stored_response_is_there_until_it_is_deleted_and_then_in_no_file(client: openai.OpenAI, home: Path) -> None:
    kept = client.responses.create(model="fake", input="xyzzy-first", max_output_tokens=5)
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    items: list[Any] = client.responses.input_items.list(kept.id).data
    assert [item.content[0].text for item in items] == ["xyzzy-first"]
    with pytest.raises(openai.BadRequestError, match="order is 'up'"):
        client.responses.input_items.list(kept.id, extra_query={"order": "up"})
    unkept = client.responses.create(model="fake", input="secret", max_output_tokens=5, store=False)
    for missing in (unkept.id, "resp_nope"):
        with pytest.raises(openai.NotFoundError, match="no stored response"):
            client.responses.retrieve(missing)
        with pytest.raises(openai.NotFoundError, match="no stored response"):
            client.responses.create(model="fake", input="x", previous_response_id=missing)
    last = client.responses.create(model="fake", input="go on", previous_response_id=kept.id, max_output_tokens=5)
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError, match=rf"continues '{kept.id}', which is no longer stored"):
        client.responses.create(model="fake", input="x", previous_response_id=last.id)
    with closing(sqlite3.connect(find_paths({"AKASHIC_HOME": str(home)}).database)) as other:
        assert other.execute("SELECT id FROM responses").fetchall() == [(last.id,)]


def test_a_removed_session_takes_its_responses_along(client: openai.OpenAI, home: Path) -> None:
    kept = client.responses.create(model="fake", input="hello", max_output_tokens=5)
    session = (kept.model_extra or {})["akashic"]["session"]
    with on_socket(find_paths({"AKASHIC_HOME": str(home)})) as native:
        assert native.delete(f"/akashic/v1/sessions/{session}").status_code == 200
    with pytest.raises(openai.NotFoundError, match="went with its session"):
        client.responses.retrieve(kept.id)


def test_a_stream_says_the_same_words_and_is_stored_when_it_says_so(client: openai.OpenAI) -> None:
    asked: Any = {"model": "fake", "input": "hello", "max_output_tokens": 20}
    whole = client.responses.create(**asked)
    deltas, last = [], None
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_text.delta":
            deltas.append(event.delta)
        last = event
    assert last is not None
    assert last.type == "response.incomplete"
    assert "".join(deltas) == whole.output_text == last.response.output_text
    assert client.responses.retrieve(last.response.id).output_text == whole.output_text
    with client.responses.stream(**asked) as stream:
        ended = [event.type for event in stream][-1]
    assert ended == "response.incomplete"


def test_a_client_that_leaves_its_stream_frees_the_request(client: openai.OpenAI, home: Path) -> None:
    with on_socket(find_paths({"AKASHIC_HOME": str(home)})) as native:
        stream = client.responses.create(model="fake", input="talk", max_output_tokens=200_000, stream=True)
        assert next(iter(stream)).type == "response.created"
        stream.close()
        deadline_s = time.monotonic() + DEADLINE_S
        while native.get("/akashic/v1/stats").json()["activity"]:
            assert time.monotonic() < deadline_s, "the request goes on without its client"


def test_errors_are_of_the_packages_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"gpt-9.*known: fake"):
        client.responses.create(model="gpt-9", input="x")
    with pytest.raises(openai.BadRequestError, match="input"):
        client.responses.create(model="fake", input=[])
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="fake", input="x" * 300_000, truncation="disabled")
    told = caught.value.body
    assert isinstance(told, dict)
    assert (told["code"], told["n_ctx"]) == ("prompt_too_long", 262_144)
    assert told["n_prompt_tokens"] > 300_000


CALLS = (ToolCall("call_1", "shell", '{"cmd": ["ls"]}'), ToolCall("call_2", "shell", '{"cmd": ["pwd"]}'))
SCRIPT = (
    TextDelta("Let me ", 2), TextDelta("look.", 1),
    ToolCallDelta(0, "", "call_1", "shell"), ToolCallDelta(0, '{"cmd": '), ToolCallDelta(0, '["ls"]}'),
    ToolCallDelta(1, '{"cmd": ["pwd"]}', "call_2", "shell"),
    replace(finished("Let me look.", 9, "tool_calls"), tool_calls=CALLS),
)  # fmt: skip
SHELL: Any = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}, "strict": False}


def test_calls_come_whole_and_streamed_alike_and_go_back_as_items(home: Path) -> None:
    asked: Any = {"model": "m", "input": "hi", "tools": [SHELL], "store": False}
    with served(scripted(home, SCRIPT)) as url, openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            names = [event.type.removeprefix("response.") for event in stream]
            streamed = stream.get_final_response()
    for response in (whole, streamed):
        assert response.status == "completed"
        assert response.output_text == "Let me look."
        calls: list[Any] = [item for item in response.output if item.type == "function_call"]
        assert [ToolCall(c.call_id, c.name, c.arguments) for c in calls] == list(CALLS)
    text = ["output_text.delta"] * 2 + ["output_text.done", "content_part.done", "output_item.done"]
    call, done = "function_call_arguments.delta", ["function_call_arguments.done", "output_item.done"]
    assert names == [
        "created", "in_progress", "output_item.added", "content_part.added", *text,
        "output_item.added", call, call, *done, "output_item.added", call, *done, "completed",
    ]  # fmt: skip
    service = EchoService(home)
    results: Any = [{"type": "function_call_output", "call_id": c.id, "output": "a.txt"} for c in CALLS]
    history: Any = [{"role": "user", "content": "hi"}, *(i.model_dump() for i in streamed.output), *results]
    with served(service) as url, openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
        client.responses.create(model="m", input=history, tools=[SHELL], store=False)
    said = service.requests[0].messages or ()
    assert [m.role.value for m in said] == ["user", "assistant", "tool", "tool"]
    assert (said[1].content, said[1].tool_calls) == ("Let me look.", CALLS)
    assert service.requests[0].tools[0]["function"]["name"] == "shell"


def test_a_call_of_a_custom_tool_comes_whole_and_streamed_alike_and_goes_back_as_an_item(home: Path) -> None:
    patch = '*** Begin "Patch"\n+é\n'
    arguments = json.dumps({"input": patch})
    script = (
        ToolCallDelta(0, "", "call_1", "apply_patch"), ToolCallDelta(0, arguments[:17]), ToolCallDelta(0, arguments[17:]),
        replace(finished("", 9, "tool_calls"), tool_calls=(ToolCall("call_1", "apply_patch", arguments),)),
    )  # fmt: skip
    tools: Any = [{"type": "custom", "name": "apply_patch", "format": {"type": "text"}}]
    asked: Any = {"model": "m", "input": "hi", "tools": tools, "store": False}
    with served(scripted(home, script)) as url, openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
        whole = client.responses.create(**asked)
        told = ""
        for event in client.responses.create(**asked, stream=True):
            if event.type == "response.custom_tool_call_input.delta":
                told += event.delta
            elif event.type == "response.completed":
                streamed = event.response
    assert told == patch
    for response in (whole, streamed):
        (call,) = response.output
        assert call.type == "custom_tool_call"
        assert (call.call_id, call.name, call.input) == ("call_1", "apply_patch", patch)
    service = EchoService(home)
    result: Any = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}
    history: Any = [{"role": "user", "content": "hi"}, streamed.output[0].model_dump(), result]
    with served(service) as url, openai.OpenAI(base_url=url + "/v1", api_key="k") as client:
        client.responses.create(model="m", input=history, tools=tools, store=False)
    said = service.requests[0].messages or ()
    assert json.loads(said[1].tool_calls[0].arguments) == {"input": patch}
    assert (said[2].content, said[2].tool_call_id) == ("done", "call_1")
