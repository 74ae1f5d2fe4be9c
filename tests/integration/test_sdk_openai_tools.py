"""The openai SDK as a client: tools, their choice, structured output, streams, and calls that come back in the history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

import tool_templates
from akashic_daemon.api.app import create_app
from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.engine.fake import FakeEngine, FakeSampler
from akashic_daemon.errors import EngineError
from akashic_daemon.toolcalls.matcher import Grammar
from fake_service import running_service

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ADD: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ROME = '<tool_call>\n{"name": "get_weather", "arguments": {"city":\n "Rome"}}\n</tool_call>'
SUM = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
QUESTION: Any = [{"role": "user", "content": "How is the weather in Rome?"}]

Check = Callable[[openai.AsyncOpenAI, FakeEngine], Awaitable[None]]


@asynccontextmanager
async def client_of(home: Path, engine: FakeEngine, **flags: Any) -> Any:
    async with running_service(home, lambda _n, _p: engine, flags=flags) as service:
        transport = httpx.ASGITransport(create_app(service, token=None), client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as http:
            own: Any = http  # newer SDKs name another package's client here, and take this one too
            yield openai.AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="none", http_client=own, max_retries=0)


def with_client(home: Path, check: Check, *, template: str = tool_templates.HERMES, **options: Any) -> None:
    async def run() -> None:
        engine = FakeEngine(kv_cells=1 << 16, window_tokens=8192, template=template, **options)
        async with client_of(home, engine) as client:
            await check(client, engine)

    asyncio.run(run())


def notes(answer: Any) -> list[str]:
    found: list[str] = answer.model_extra["akashic"]["notes"]
    return found


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_comes_as_the_sdk_expects_it(home: Path, choice: Any) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts.append(ROME)
        answer = await client.chat.completions.create(
            model="fake", messages=QUESTION, tools=[WEATHER, ADD], tool_choice=choice
        )
        said = answer.choices[0]
        assert said.finish_reason == "tool_calls"
        assert said.message.content is None
        (call,) = said.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city":\n "Rome"}')
        assert call.id.startswith("call_")
        params = engine.sampled_with[-1]
        assert Grammar(params.grammar or "").start().after(ROME).may_end
        assert Grammar(params.grammar or "").start().after(SUM).may_end == (not isinstance(choice, dict))
        assert [t.text for t in params.triggers] == (["<tool_call>"] if choice == "auto" else [])

    with_client(home, check)


@pytest.mark.parametrize("parallel", [True, False])
def test_several_calls_stream_one_after_the_other(home: Path, parallel: bool) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts.append(f"Both at once.\n{ROME}\n{SUM}")
        stream = await client.chat.completions.create(
            model="fake", messages=QUESTION, tools=[WEATHER, ADD], stream=True, parallel_tool_calls=parallel,
            stream_options={"include_usage": True},
        )  # fmt: skip
        text, calls, reason, usage = "", dict[int, list[str]](), None, None
        pieces = 0
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
                for delta in choice.delta.tool_calls or []:
                    assert delta.function is not None
                    if delta.index not in calls:
                        assert delta.id
                        assert delta.function.name
                        calls[delta.index] = [delta.function.name, ""]
                    calls[delta.index][1] += delta.function.arguments or ""
                    pieces += 1
        expected = [["get_weather", '{"city":\n "Rome"}'], ["add", '{"a": 1}']]
        assert [calls[i] for i in sorted(calls)] == (expected if parallel else expected[:1])
        assert text == "Both at once."
        assert reason == "tool_calls"
        assert pieces > 5, "arguments are told as they come"
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        grammar = Grammar(engine.sampled_with[-1].grammar or "")
        assert grammar.start().after(f"{ROME}\n{SUM}").may_end == parallel

    with_client(home, check)


def test_the_sdks_stream_helper_puts_the_call_together(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts.append(ROME)
        async with client.chat.completions.stream(model="fake", messages=QUESTION, tools=[WEATHER]) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in kinds
        (call,) = final.choices[0].message.tool_calls or []
        assert call.function.arguments == '{"city":\n "Rome"}'

    with_client(home, check)


def rewritten(message: Any) -> Any:
    """Return an assistant message as a client sends it back that parsed the arguments and wrote them anew."""
    sent = message.model_dump(exclude_none=True)
    for call in sent["tool_calls"]:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    return {"role": "assistant", "content": sent.get("content"), "tool_calls": sent["tool_calls"]}


@pytest.mark.parametrize("name", ["HERMES", "TEXT_ARGUMENTS", "NO_TOOL_ROLE", "TAGS", "DEEPSEEK", "LLAMA"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_call_that_comes_back_written_otherwise_costs_nothing(home: Path, name: str, restarts: bool) -> None:
    template = getattr(tool_templates, name).replace("<|eot_id|>", "<|im_end|>")  # what ends this engine's turns
    script = f"Well.\n{ROME}\n{SUM}"
    if name == "TAGS":
        script = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
    if name == "LLAMA":
        script = '{"name": "get_weather", "parameters": {"city":\n "Rome"}}'
    if name == "DEEPSEEK":
        inner = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city":\n "Rome"}<｜tool▁call▁end｜>'
        script = f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"

    async def run() -> None:
        engine = FakeEngine(kv_cells=1 << 16, window_tokens=8192, template=template)
        ask: Any = {"model": "fake", "tools": [WEATHER, ADD], "max_tokens": 300}
        async with client_of(home, engine) as client:
            engine.scripts.append(script)
            first = await client.chat.completions.create(messages=QUESTION, **ask)
            message = first.choices[0].message
            assert first.choices[0].finish_reason == "tool_calls"
            results = [{"role": "tool", "tool_call_id": c.id, "content": "fine"} for c in message.tool_calls or []]
            history: Any = [*QUESTION, rewritten(message), *results]
            if not restarts:
                await again(client, engine, first, history, ask)
        if restarts:
            engine = FakeEngine(kv_cells=1 << 16, window_tokens=8192, template=template)
            async with client_of(home, engine) as client:
                await again(client, engine, first, history, ask)

    async def again(client: openai.AsyncOpenAI, engine: FakeEngine, first: Any, history: Any, ask: Any) -> None:
        engine.scripts.append("It is fine.")
        second = await client.chat.completions.create(messages=history, **ask)
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        block = second.model_extra["akashic"]
        before = first.usage.prompt_tokens + first.usage.completion_tokens - 1  # without the end mark
        prompt = bytes(t for t in engine_prompt(engine) if t < 256).decode("utf-8", "replace")
        assert script in prompt, "the sampled bytes stand in the prompt"
        if not restarts:
            assert second.usage.prompt_tokens_details.cached_tokens >= before - 1
            assert block["miss"] is None
        third = await client.chat.completions.create(messages=[*history], **ask)
        assert third.usage is not None
        assert third.usage.prompt_tokens == second.usage.prompt_tokens

    asyncio.run(run())


def engine_prompt(engine: FakeEngine) -> list[int]:
    """Return the tokens of the longest sequence, in order."""
    held = max(engine.cells, key=len)
    return [held[p].token for p in sorted(held)]


class Person(BaseModel):
    """What structured output is to be."""

    name: str
    age: int
    kind: Literal["cat", "dog"]


def test_structured_output_is_parsed_by_the_sdk(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts.append('{"name": "Tom", "age": 4, "kind": "cat"}')
        answer = await client.beta.chat.completions.parse(model="fake", messages=QUESTION, response_format=Person)
        assert answer.choices[0].message.parsed == Person(name="Tom", age=4, kind="cat")
        grammar = Grammar(engine.sampled_with[-1].grammar or "")
        assert grammar.start().after('{"name": "x", "age": 1, "kind": "dog"}').may_end
        for bad in ('{"name": "x", "age": 1.5, "kind": "dog"}', '{"name": "x", "age": 1, "kind": "cow"}', "{}", "Well"):
            assert not grammar.start().after(bad).may_end
        engine.scripts.append('{"a": [1]}')
        free = await client.chat.completions.create(
            model="fake", messages=QUESTION, response_format={"type": "json_object"}
        )
        assert free.choices[0].message.content == '{"a": [1]}'
        grammar = Grammar(engine.sampled_with[-1].grammar or "")
        assert grammar.start().after('{"a": [1, {"b": null}]}').may_end
        assert not grammar.start().after("[1]").is_possible

    with_client(home, check)


def test_tools_of_the_sdks_helper_are_strict_and_parsed(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts.append(
            '<tool_call>\n{"name": "Person", "arguments": {"name": "T", "age": 1, "kind": "dog"}}\n</tool_call>'
        )
        tool = openai.pydantic_function_tool(Person)
        answer = await client.beta.chat.completions.parse(model="fake", messages=QUESTION, tools=[tool])
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.function.parsed_arguments == Person(name="T", age=1, kind="dog")

    with_client(home, check)


def test_stop_strings_end_text_and_no_arguments(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts += [ROME, "It is Rome of course"]
        ask: Any = {"model": "fake", "messages": QUESTION, "tools": [WEATHER], "stop": ["Rome"]}
        called = await client.chat.completions.create(**ask)
        assert called.choices[0].finish_reason == "tool_calls"
        told = await client.chat.completions.create(**ask)
        assert told.choices[0].finish_reason == "stop"
        assert told.choices[0].message.content == "It is "

    with_client(home, check)


def test_what_is_no_call_is_text_and_none_is_made_when_none_may_be(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        broken = "<tool_call>\nrain\n</tool_call>"
        engine.scripts += [broken, ROME]
        answer = await client.chat.completions.create(model="fake", messages=QUESTION, tools=[WEATHER])
        assert answer.choices[0].message.content == broken
        assert answer.choices[0].finish_reason == "stop"
        none = await client.chat.completions.create(
            model="fake", messages=QUESTION, tools=[WEATHER], tool_choice="none"
        )
        assert none.choices[0].message.tool_calls is None
        assert none.usage is not None
        assert answer.usage is not None
        assert none.usage.prompt_tokens == answer.usage.prompt_tokens, "the prefix stays what it was"

    with_client(home, check)


def test_an_answer_cut_within_a_call_says_length_and_gives_what_there_is(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts += [ROME, "Sorry."]
        answer = await client.chat.completions.create(
            model="fake", messages=QUESTION, tools=[WEATHER], max_tokens=len(ROME) - 20
        )
        assert answer.choices[0].finish_reason == "length"
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert '{"city":\n "Rome"}'.startswith(call.function.arguments)
        history: Any = [*QUESTION, answer.choices[0].message.model_dump(exclude_none=True)]
        history.append({"role": "tool", "tool_call_id": call.id, "content": "no JSON"})
        after = await client.chat.completions.create(model="fake", messages=history, tools=[WEATHER])
        assert after.choices[0].message.content == "Sorry."

    with_client(home, check)


def test_an_engine_without_grammars_says_so_and_refuses_what_needs_one(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        engine.scripts.append(ROME)
        answer = await client.chat.completions.create(model="fake", messages=QUESTION, tools=[WEATHER])
        assert answer.choices[0].finish_reason == "tool_calls"
        assert any("schemas" in note for note in notes(answer))
        for options in ({"tool_choice": "required", "tools": [WEATHER]}, {"response_format": {"type": "json_object"}}):
            with pytest.raises(openai.APIStatusError, match="grammar"):
                await client.chat.completions.create(model="fake", messages=QUESTION, **options)

    with_client(home, check, grammar=False)


def test_tools_with_shuffled_keys_keep_the_prefix(home: Path) -> None:
    async def check(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
        function = WEATHER["function"]
        shuffled: Any = {"function": dict(reversed(function.items())), "type": "function"}
        ask: Any = {"model": "fake", "messages": QUESTION, "max_tokens": 4}
        first = await client.chat.completions.create(tools=[WEATHER], **ask)
        second = await client.chat.completions.create(tools=[shuffled], **ask)
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1

    with_client(home, check)


BAD: dict[str, dict[str, Any]] = {
    "unknown choice": {"tool_choice": "always"},
    "choice of a tool that isn't there": {"tool_choice": {"type": "function", "function": {"name": "g"}}},
    "choice without a name": {"tool_choice": {"type": "function"}},
    "two tools of one name": {"tools": [WEATHER, WEATHER]},
    "parameters that are no schema": {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
    "impossible schema": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": False}}}}]
    },
    "unknown format": {"response_format": {"type": "xml"}},
    "format without a schema": {"response_format": {"type": "json_schema"}},
    "strict schema that can't be held": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "strict": True, "schema": {"type": "object", "minProperties": 1}},
        }
    },
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD)
def test_what_tools_cannot_be_is_a_400_that_names_the_field(home: Path, fields: dict[str, Any]) -> None:
    async def check(client: openai.AsyncOpenAI, _engine: FakeEngine) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(
                **{"model": "fake", "messages": QUESTION, "tools": [WEATHER], **fields}
            )
        assert any(word in str(refusal.value) for word in ("tool", "format"))

    with_client(home, check)


class _Stuck(FakeEngine):
    """Its first answer can't be given in the form that was asked for."""

    def sampler(self, params: SamplingParams) -> FakeSampler:
        made = super().sampler(params)
        if len(self.sampled_with) == 1:
            made.sample = self._refuse  # type: ignore[method-assign, assignment]
        return made

    def _refuse(self, _item: int) -> int:
        raise EngineError("no token goes on with the form")


def test_an_answer_whose_form_cannot_be_met_ends_alone(home: Path) -> None:
    async def run() -> None:
        engine = _Stuck(kv_cells=1 << 16, window_tokens=8192, template=tool_templates.HERMES)
        async with client_of(home, engine) as client:
            ask: Any = {"model": "fake", "messages": QUESTION, "max_tokens": 30}
            both = await asyncio.gather(
                *(client.chat.completions.create(**ask) for _ in range(2)), return_exceptions=True
            )
            failed = [answer for answer in both if isinstance(answer, openai.APIStatusError)]
            assert len(failed) == 1
            assert "no token goes on" in str(failed[0])
            assert (await client.chat.completions.create(**ask)).choices[0].message.content

    asyncio.run(run())
