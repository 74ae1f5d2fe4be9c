"""What templates do with tools and calls; definitions in one order; what requests may ask for; triggers of grammars."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

import tool_templates
from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.definitions import canonical, name_of
from akashic_daemon.toolcalls.form import answer_form
from akashic_daemon.toolcalls.matcher import Grammar
from akashic_daemon.toolcalls.syntax import (
    COMMAND,
    DEEPSEEK,
    DEEPSEEK_PLAIN,
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    TAGS,
    Syntax,
    syntax_of,
)
from akashic_daemon.toolcalls.trigger import GrammarTrigger, Trigger
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from akashic_daemon.trajectory.template import ChatTemplate

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city"],
        },
    },
}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
}
CHAT = [
    Message(Role.USER, "How is the weather in Rome?"),
    Message(Role.ASSISTANT, "", tool_calls=(ToolCall("call_1", "get_weather", '{"city":"Rome"}'),)),
    Message(Role.TOOL, "sunny", tool_call_id="call_1"),
]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (tool_templates.HERMES, "hermes"),
        (tool_templates.TEXT_ARGUMENTS, "hermes"),
        (tool_templates.TAGS, "tags"),
        (tool_templates.MISTRAL, "mistral"),
        (tool_templates.MISTRAL.replace("[TOOL_CALLS] [", "[TOOL_CALLS]x[ARGS]["), "mistral_named"),
        (tool_templates.LLAMA, "llama3"),
        (tool_templates.NO_TOOL_ROLE, "generic"),
        ("{{ tools }}<|tool_call|>", "granite"),
        ("{{ tools }}<|tool_call|><|/tool_call|>", "phi4"),
        ("{{ tools }}<|START_ACTION|>", "command_r"),
        ("{{ tools }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>```json", "deepseek"),
        ("<｜tool▁call▁begin｜><｜tool▁sep｜>", "deepseek_plain"),
        ("{{ tools }}<|tool_call|>{}<|/tool_call|>", "phi4_object"),
        ("{{ tools }}<TOOLCALL>[]</TOOLCALL>", "nemotron"),
        ("{{ tools }}<tool_call><arg_key>", "generic"),
        ("{{ tools }}<<unheard of>>", "generic"),
    ],
)
def test_the_wrapper_is_told_from_the_template(source: str, name: str) -> None:
    assert syntax_of(source).name == name


@pytest.mark.parametrize("source", [tool_templates.HERMES, tool_templates.TEXT_ARGUMENTS])
def test_arguments_reach_a_template_in_the_form_that_it_takes(source: str) -> None:
    text = template(source).render(CHAT, tools=[WEATHER])
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city":' in text
    assert "Rome" in text
    assert "\\" not in text.split("</tools>")[1]


@pytest.mark.parametrize("name", ["HERMES", "TEXT_ARGUMENTS", "TAGS", "MISTRAL", "LLAMA", "NO_TOOL_ROLE", "DEEPSEEK"])
@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "", "null", '{"a": NaN}', "\udcff"])
def test_a_broken_call_in_the_history_is_shown_and_not_refused(name: str, arguments: str) -> None:
    calls = (ToolCall("call_1", "get_weather", arguments),)
    history = [CHAT[0], Message(Role.ASSISTANT, "", tool_calls=calls), CHAT[2]]
    rendered = template(getattr(tool_templates, name)).segments(history)
    assert "get_weather" in rendered.text
    assert "sunny" in rendered.text


def test_a_template_without_tool_results_or_system_role_gets_both_in_user_messages() -> None:
    rendered = template(tool_templates.NO_TOOL_ROLE).segments(CHAT, tools=[WEATHER])
    assert rendered.text.startswith("<|im_start|>user\n# Tools\n")
    assert "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>" in rendered.text
    assert any("first user message" in note for note in rendered.notes)
    assert any("no tool results" in note for note in rendered.notes)


def test_a_template_that_shows_calls_but_no_tools_has_them_described_in_its_own_wrapper() -> None:
    rendered = template(tool_templates.DEEPSEEK).segments(CHAT, tools=[WEATHER])
    assert "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{" in rendered.text.split("<｜User｜>")[0]
    assert '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city":"Rome"}<｜tool▁call▁end｜>' in rendered.text
    assert any("system message" in note for note in rendered.notes)


def test_ids_have_the_length_that_the_template_wants_and_results_keep_pointing_at_their_calls() -> None:
    made = template(tool_templates.MISTRAL)
    first = made.render(CHAT)
    assert first == made.render(CHAT)
    shown = first.split('"id": "')[1].split('"')[0]
    assert len(shown) == 9
    own = [CHAT[0], Message(Role.ASSISTANT, "", tool_calls=(ToolCall("abcdefgh1", "f", "{}"),)), CHAT[2]]
    assert '"id": "abcdefgh1"' in made.render(own)


def test_definitions_with_shuffled_keys_are_the_same_text() -> None:
    def shuffled(value: Any, chance: random.Random, *, keep: bool = False) -> Any:
        if isinstance(value, dict):
            keys = list(value)
            if not keep:
                chance.shuffle(keys)
            return {k: shuffled(value[k], chance, keep=k == "properties" and not keep) for k in keys}
        return [shuffled(v, chance) for v in value] if isinstance(value, list) else value

    texts = {json.dumps(canonical([shuffled(WEATHER, random.Random(seed))])) for seed in range(20)}
    assert len(texts) == 1


def test_tools_keep_their_order_unless_the_canonical_one_is_asked_for() -> None:
    assert [name_of(t) for t in canonical([WEATHER, ADD])] == ["get_weather", "add"]
    assert canonical([WEATHER, ADD], by_name=True) == canonical([ADD, WEATHER], by_name=True)
    odd = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"b": {}, "a": {}}}}}
    properties = canonical([odd])[0]["function"]["parameters"]["properties"]
    assert list(properties) == ["b", "a"]
    assert list(canonical([odd], by_name=True)[0]["function"]["parameters"]["properties"]) == ["a", "b"]


def test_values_in_a_definition_are_left_as_they_are() -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [{"b": 1, "a": 2}], "default": {"d": 1, "c": 2}}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    shown = canonical([tool], by_name=True)[0]["function"]["parameters"]["properties"]["x"]
    assert list(shown["enum"][0]) == ["b", "a"]
    assert list(shown["default"]) == ["d", "c"]


CALLS = {
    HERMES: '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>',
    LLAMA: '{"name": "get_weather", "parameters": {"city": "Rome", "days": 3}}',
    MISTRAL: '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}]',
    COMMAND: '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome", "days": 3}}]'
    "<|END_ACTION|>",
    DEEPSEEK_PLAIN: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city": "Rome", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    DEEPSEEK: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Rome", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    TAGS: "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome</x>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
}


@pytest.mark.parametrize("syntax", CALLS, ids=lambda s: s.name)
def test_the_grammar_of_calls_is_the_wrapper_around_arguments_that_conform(syntax: Syntax) -> None:
    call = CALLS[syntax]

    def allowed(text: str, **options: Any) -> bool:
        form = answer_form(syntax, [WEATHER, ADD], **{"tool_choice": "required", **options})
        assert form.grammar is not None
        return Grammar(form.grammar).start().after(text).may_end

    assert allowed(call)
    assert allowed(call, tool_choice="tool:get_weather")
    assert not allowed(call, tool_choice="tool:add")
    assert not allowed(call.replace("3", "12"))
    assert not allowed(call.replace("city", "town"))
    assert not allowed(call.replace("get_weather", "get_news"))
    assert not allowed("Rome is sunny.")
    twice = {MISTRAL: call[:-1] + ", " + call[len("[TOOL_CALLS] [") :], LLAMA: f"{call}; {call}"}
    if syntax.outer[0]:
        inner = call.removeprefix(syntax.outer[0]).removesuffix(syntax.outer[1])
        twice[syntax] = f"{syntax.outer[0]}{inner}\n{inner}{syntax.outer[1]}"
    if syntax is COMMAND:
        element = call.split("[")[1].split("]")[0]
        twice[syntax] = call.replace(element, f"{element}, {element}")
    both = twice.get(syntax, f"{call}\n{call}")
    assert allowed(both)
    assert not allowed(both, parallel=False)


def test_a_choice_that_no_tool_meets_is_refused_and_names_the_tools() -> None:
    with pytest.raises(BadRequest, match="'get_news'") as refusal:
        answer_form(HERMES, [WEATHER], tool_choice="tool:get_news")
    assert "get_weather" in str(refusal.value.hint)
    with pytest.raises(BadRequest, match="no tools"):
        answer_form(HERMES, [], tool_choice="required")


def test_thoughts_may_precede_a_call_that_must_be_made() -> None:
    call = CALLS[HERMES]
    for thinking, good, bad in (
        ("none", call, f"<think>x</think>\n{call}"),
        ("may", f"<think>a </b> <x\n</think>\n\n{call}", f"hm</think>{call}"),
        ("must", f"hm < so\n</think>\n\n{call}", call),
    ):
        form = answer_form(HERMES, [WEATHER], tool_choice="required", thinking=thinking)  # type: ignore[arg-type]
        grammar = Grammar(form.grammar or "")
        assert grammar.start().after(good).may_end
        assert not grammar.start().after(bad).may_end
    assert template(tool_templates.THINKING).thinking() == "must"
    assert template(tool_templates.HERMES).thinking() == "none"


def test_what_a_grammar_cannot_say_is_noted_and_refused_when_strict() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "minProperties": 1}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    notes = answer_form(HERMES, [tool]).notes
    assert [n for n in notes if "tools[0].function.parameters.a" in n and "uniqueItems" in n]
    assert [n for n in notes if "minProperties" in n]
    tool["function"]["strict"] = True  # type: ignore[index]
    with pytest.raises(BadRequest, match=r"uniqueItems|minProperties"):
        answer_form(HERMES, [tool])


@pytest.mark.parametrize(
    ("pattern", "is_said"),
    [
        ("^(a*)*$", False), ("((((a*)*)*)*)*b", False), ("^(a?|b)+$", False), ("^(|a){2,}$", False), ("^(a*b?)*c$", False),
        ("^(a+)+$", True), ("^(a*)?$", True), ("^(a?){0,3}$", False), ("^((a{0,9}b){0,500}c){0,9}$", False), ("^(ab?){1,3}$", True), ("^(a*b)*$", True), ("^(a|bc?)+$", True),
    ],
)  # fmt: skip
def test_a_count_of_nothing_or_of_very_much_in_a_pattern_is_noted_and_the_request_goes_on(
    pattern: str, is_said: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    form = answer_form(HERMES, [], json_schema=schema)
    assert bool(form.notes) != is_said
    grammar = Grammar(form.grammar or "")
    assert grammar.start().after('{"a":"ab"}').may_end == (not is_said or re.search(pattern, "ab") is not None)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"$ref": "#/$defs/none"}, "there is no"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "leads to itself"),
        (False, "no value"),
        ({"type": "text"}, "is no type"),
        ({"enum": []}, "list with values"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no integer"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "larger"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "exclude each other"),
        ({"properties": []}, "expected an object"),
        ({"type": "string", "minLength": -1}, "expected a count"),
        ({"anyOf": []}, "list of schemas"),
    ],
)
def test_a_schema_that_says_nothing_possible_is_refused_by_its_place(schema: Any, what: str) -> None:
    with pytest.raises(BadRequest, match=what) as refusal:
        answer_form(HERMES, [], json_schema={"type": "object", "properties": {"x": schema}, **_defs(schema)})
    assert "response_format" in str(refusal.value)


def _defs(schema: Any) -> dict[str, Any]:
    return {"$defs": schema["$defs"]} if isinstance(schema, dict) and "$defs" in schema else {}


def test_references_may_contain_themselves_and_schemas_may_be_joined() -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["name", "children"],
                "additionalProperties": False,
            }
        },
    }
    grammar = Grammar(answer_form(HERMES, [], json_schema=tree).grammar or "")
    deep = '{"name": "a", "children": [{"name": "b", "children": []}]}'
    assert grammar.start().after(deep).may_end
    assert not grammar.start().after(deep.replace("b", "b\n")).may_end
    joined = {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]}
    grammar = Grammar(answer_form(HERMES, [], json_schema=joined).grammar or "")
    assert grammar.start().after('{"a": 1}').may_end
    assert not grammar.start().after("{}").may_end


def test_a_schema_that_is_nested_too_deep_or_too_large_is_refused() -> None:
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    with pytest.raises(BadRequest, match="nested deeper"):
        answer_form(HERMES, [], json_schema=deep)
    wide = {"type": "object", "properties": {f"property_{i}": {"enum": [str(i) * 99]} for i in range(9000)}}
    with pytest.raises(BadRequest, match="more than"):
        answer_form(HERMES, [], json_schema=wide)


def test_a_trigger_is_noticed_wherever_tokens_cut_it() -> None:
    said = b"Let me see. <tool_call>\n{"
    for width in range(1, len(said) + 1):
        watch = GrammarTrigger([Trigger("<tool_call>")])
        pieces = [said[i : i + width] for i in range(0, len(said), width)]
        found = [f for number, piece in enumerate(pieces) if (f := watch.push(number, piece))]
        assert found[0].text.startswith("<tool_call>")
        assert b"".join(pieces[t] for t in found[0].tokens).decode().endswith(found[0].text)


def test_a_trigger_of_the_start_is_none_later() -> None:
    start = [Trigger('{"name"', at_start=True)]
    watch = GrammarTrigger(start)
    assert [watch.push(i, bytes([c])) for i, c in enumerate(b'so {"name": 1')] == [None] * 13
    watch = GrammarTrigger(start)
    assert any(watch.push(i, bytes([c])) for i, c in enumerate(b'\n {"name": 1'))


def test_forbidden_calls_are_kept_from_being_begun() -> None:
    assert answer_form(GENERIC, [WEATHER], tool_choice="none").banned == ("<tool_call>",)
    assert answer_form(GENERIC, [], tool_choice="none").banned == ()


def test_a_grammar_that_begins_with_itself_or_lacks_a_rule_is_refused() -> None:
    for broken in ('root ::= root "a"', 'root ::= x? root | "a"\nx ::= "b"', "root ::= other", "start ::= [a]"):
        with pytest.raises(ValueError, match=r"itself|no rule"):
            Grammar(broken)
    Grammar('root ::= "a" root | "b"')
