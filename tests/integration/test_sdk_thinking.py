"""Models that think, and answers that are continued: the SDKs as clients of a daemon on the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import tool_templates
from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.service import Service
from fake_service import running_service
from served_app import listening

THINKS = tool_templates.SHOWS_THOUGHTS
OPENS = THINKS.replace("<|im_start|>assistant\n{% if enable", "<|im_start|>assistant\n<think>\n{% if enable")
THOUGHT, SAID = "Let me see.\n\nWell.", "Yes."
SCRIPT = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"
CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>'
QUESTION: Any = {"role": "user", "content": "Is it so? " * 40}
TOOL: Any = {"name": "ls", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@dataclass
class Parts:
    """Clients of one service, and its engine."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    engine: FakeEngine
    service: Service


@asynccontextmanager
async def parts(home: Path, template: str) -> AsyncIterator[Parts]:
    engine = FakeEngine(kv_cells=1 << 16, window_tokens=8192, template=template)
    async with (
        running_service(home, lambda _n, _p: engine) as service,
        listening(create_app(service, token=None)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as chat,
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as claude,
    ):
        yield Parts(chat, claude, engine, service)


def check(home: Path, work: Callable[[Parts], Awaitable[None]], template: str = THINKS) -> None:
    async def run() -> None:
        async with parts(home, template) as made:
            await work(made)

    asyncio.run(run())


def computed(answer: Any) -> int:
    return int(answer.model_extra["akashic"]["computed_tokens"])


@pytest.mark.parametrize(
    ("template", "script"),
    [
        (THINKS, SCRIPT),
        (OPENS, SCRIPT.removeprefix("<think>\n")),
        (tool_templates.BRACKETS, f"[THINK]{THOUGHT}[/THINK]{SAID}"),
        (
            tool_templates.HARMONY,
            f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{SAID}",
        ),
    ],
    ids=["think", "opened", "brackets", "channels"],
)
def test_thoughts_come_apart_from_what_is_said_whole_and_streamed(home: Path, template: str, script: str) -> None:
    async def work(made: Parts) -> None:
        made.engine.scripts += [script] * 4
        chat: Any = {"model": "fake", "messages": [QUESTION]}
        whole: Any = (await made.openai.chat.completions.create(**chat)).choices[0].message
        assert (whole.reasoning_content, whole.content) == (THOUGHT, SAID)
        thought = said = ""
        stream: Any = await made.openai.chat.completions.create(
            **chat, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            for choice in chunk.choices:
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                said += choice.delta.content or ""
            usage = chunk.usage
        assert (thought, said) == (THOUGHT, SAID)
        assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
        claude: Any = {"model": "fake", "max_tokens": 200, "messages": [QUESTION]}
        message = await made.anthropic.messages.create(**claude)
        async with made.anthropic.messages.stream(**claude) as events:
            streamed = await events.get_final_message()
        for found in (message, streamed):
            blocks: list[Any] = list(found.content)
            assert [(b.type, getattr(b, b.type)) for b in blocks] == [("thinking", THOUGHT), ("text", SAID)]
            assert blocks[0].signature

    check(home, work, template)


def test_responses_have_reasoning_items_whole_and_streamed(home: Path) -> None:
    async def work(made: Parts) -> None:
        made.engine.scripts += [SCRIPT] * 2
        asked: Any = {"model": "fake", "input": "so?", "include": ["reasoning.encrypted_content"]}
        whole = await made.openai.responses.create(**asked)
        async with made.openai.responses.stream(**asked) as events:
            deltas = [e.delta async for e in events if e.type == "response.reasoning_text.delta"]
            streamed = await events.get_final_response()
        assert "".join(deltas) == THOUGHT
        for found in (whole, streamed):
            items: list[Any] = list(found.output)
            assert [item.type for item in items] == ["reasoning", "message"]
            assert items[0].content[0].text == THOUGHT
            assert found.output_text == SAID
        for item in ({"type": "reasoning", "summary": [], "encrypted_content": items[0].encrypted_content}, items[0]):
            made.engine.scripts.append("on")
            history: Any = [{"role": "user", "content": "so?"}, item, items[1], {"role": "user", "content": "on"}]
            answer: Any = await made.openai.responses.create(model="fake", input=history)
            told = await made.service.export_session(answer.model_extra["akashic"]["session"])
            assert (told[1].thinking, told[1].content) == (THOUGHT, SAID)

    check(home, work)


@pytest.mark.parametrize(("template", "head"), [(THINKS, "<think>"), (OPENS, "")])
def test_thoughts_before_a_call_stay_as_they_were_sampled(home: Path, template: str, head: str) -> None:
    odd = f"{head}\n\n{THOUGHT}\n</think>\n{CALL}"

    async def work(made: Parts) -> None:
        asked: Any = {"model": "fake", "max_tokens": 400, "tools": [TOOL]}
        made.engine.scripts += [odd, "done"]
        first = await made.anthropic.messages.create(**asked, messages=[QUESTION])
        assert [block.type for block in first.content] == ["thinking", "tool_use"]
        call: Any = first.content[1]
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "a b"}]}
        history: Any = [QUESTION, {"role": "assistant", "content": first.content}, result]
        second = await made.anthropic.messages.create(**asked, messages=history)
        assert computed(second) <= len("<>\n<>tool\na b<>\n<>assistant\n<think>\n") + 1
        forgetful: Any = [QUESTION, {"role": "assistant", "content": [call]}, result]
        made.engine.scripts.append("done")
        third = await made.anthropic.messages.create(**asked, messages=forgetful)
        assert computed(third) > len(CALL) / 2, "a client that leaves thoughts out gets a prompt without them"

    check(home, work, template)


def test_a_model_can_be_told_not_to_think(home: Path) -> None:
    async def work(made: Parts) -> None:
        off: Any = {"chat_template_kwargs": {"enable_thinking": False}}
        for extra in (off, {"reasoning_effort": "none"}):
            made.engine.scripts.append(SAID)
            answer = await made.openai.chat.completions.create(model="fake", messages=[QUESTION], extra_body=extra)
            assert answer.choices[0].message.content == SAID
            assert answer.usage is not None
            told = answer.usage.prompt_tokens
            marks = "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            assert told == len(made.engine.tokenize(QUESTION["content"] + marks, special=True))
        made.engine.scripts.append(SAID)
        claude: Any = {"model": "fake", "max_tokens": 50, "messages": [QUESTION], "thinking": {"type": "disabled"}}
        assert [block.type for block in (await made.anthropic.messages.create(**claude)).content] == ["text"]
        counted = await made.anthropic.messages.count_tokens(
            model="fake", messages=[QUESTION], thinking={"type": "disabled"}
        )
        assert counted.input_tokens == told

    check(home, work)


def test_a_begun_answer_is_gone_on_with_and_is_one_message_afterwards(home: Path) -> None:
    async def work(made: Parts) -> None:
        begun: Any = {"role": "assistant", "content": "The answer is"}
        made.engine.scripts += [" 42.", " 42.", " 42.", "bye"]
        first = await made.openai.chat.completions.create(
            model="fake", messages=[QUESTION, begun], extra_body={"continue_final_message": True}
        )
        assert first.choices[0].message.content == " 42."
        claude: Any = {"model": "fake", "max_tokens": 50, "messages": [QUESTION, begun]}
        second = await made.anthropic.messages.create(**claude)
        assert getattr(second.content[0], "text", None) == " 42."
        assert computed(second) == 1
        counted = await made.anthropic.messages.count_tokens(model="fake", messages=[QUESTION, begun])
        assert first.usage is not None
        assert counted.input_tokens == first.usage.prompt_tokens
        async with made.anthropic.messages.stream(**claude) as stream:
            assert await stream.get_final_text() == " 42."
        session = (second.model_extra or {})["akashic"]["session"]
        told = await made.service.export_session(session)
        assert [m.content for m in told] == [QUESTION["content"], "The answer is 42."]
        whole = {"role": "assistant", "content": "The answer is 42."}
        claude["messages"] = [QUESTION, whole, {"role": "user", "content": "bye"}]
        third = await made.anthropic.messages.create(**claude)
        assert computed(third) <= len("<>\n<>user\nbye<>\n<>assistant\n")

    check(home, work)


@pytest.mark.parametrize(
    ("last", "extra", "words"),
    [
        ({"role": "user", "content": "x"}, {"continue_final_message": True}, "it is the user's"),
        ({"role": "user", "content": "x"}, {"add_generation_prompt": False}, "nobody's turn"),
        (
            {"role": "assistant", "content": "x"},
            {"continue_final_message": True, "add_generation_prompt": True},
            "both true",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(home: Path, last: Any, extra: Any, words: str) -> None:
    async def work(made: Parts) -> None:
        with pytest.raises(openai.BadRequestError, match=words):
            await made.openai.chat.completions.create(model="fake", messages=[QUESTION, last], extra_body=extra)

    check(home, work)


def test_an_empty_beginning_is_no_beginning(home: Path) -> None:
    async def work(made: Parts) -> None:
        made.engine.scripts.append(SAID)
        empty: Any = {"role": "assistant", "content": ""}
        answer: Any = await made.anthropic.messages.create(model="fake", max_tokens=50, messages=[QUESTION, empty])
        assert answer.content[0].text == SAID

    check(home, work)
