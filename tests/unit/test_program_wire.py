"""Cache programs in requests: what is understood, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    ReplaceMessage,
    ReplaceSelected,
    ReposAt,
)
from akashic_daemon.program.path import MAX_OPS
from akashic_daemon.program.selectors import parse
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.program.wire import from_akv, from_request, from_stored, from_wire, to_stored
from layouts_strategy import layout_of


def test_each_operation_of_cache_ops_is_read() -> None:
    sent: list[dict[str, Any]] = [
        {"op": "drop", "messages": [3, 4], "at": 8},
        {"op": "drop", "select": "tool[:-12]"},
        {"op": "drop", "tokens": [[3, 9], [12, 14]], "at": None},
        {"op": "repos", "at": 9},
        {"op": "replace", "message": 5, "content": "gone", "at": 9},
        {"op": "replace", "select": "tool", "content": ""},
    ]
    assert from_wire(sent) == [
        DropMessages((3, 4), at=8),
        DropSelected(parse("tool[:-12]")),
        DropTokens(((3, 9), (12, 14))),
        ReposAt(at=9),
        ReplaceMessage(5, "gone", at=9),
        ReplaceSelected(parse("tool"), ""),
    ]
    assert from_stored([to_stored(op) for op in from_wire(sent)]) == from_wire(sent)


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        ({"op": "dorp", "messages": [3]}, "cache_ops[0]: there is no operation 'dorp' (did you mean 'drop'?)"),
        ({"messages": [3]}, "there is no operation None (operations are drop, repos, replace)"),
        ({"op": ["drop"]}, "there is no operation ['drop']"),
        ("drop", "cache_ops[0]: isn't an object"),
        ({"op": "drop", "mesages": [3]}, "(drop): there is no field 'mesages' (did you mean 'messages'?)"),
        ({"op": "repos", "messages": [3]}, "(repos): there is no field 'messages' (it has at)"),
        ({"op": "drop"}, "(drop): names nothing to work on (give exactly one of messages, select, tokens)"),
        ({"op": "drop", "messages": [3], "select": "tool"}, "names messages and select to work on"),
        ({"op": "drop", "messages": 3}, "messages is 3, which isn't a list of whole numbers"),
        ({"op": "drop", "messages": "3"}, "messages is '3', which isn't a list"),
        ({"op": "drop", "messages": [3, "4"]}, "messages[1] is '4', which isn't a whole number"),
        ({"op": "drop", "messages": [True]}, "messages[0] is True, which isn't a whole number"),
        ({"op": "drop", "messages": [3], "at": 1.5}, "(drop): at is 1.5, which isn't a whole number"),
        ({"op": "drop", "tokens": [3, 9]}, "tokens[0] is 3, which isn't a pair [first, end)"),
        ({"op": "drop", "tokens": [[3, 9, 2]]}, "tokens[0] is [3, 9, 2], which isn't a pair"),
        ({"op": "drop", "tokens": [[3, None]]}, "tokens[0][1] is None, which isn't a whole number"),
        ({"op": "drop", "select": "tol"}, "cache_ops[0]: select 'tol': line 1, column 1: found 'tol'"),
        ({"op": "drop", "select": 5}, "select isn't a text"),
        ({"op": "replace", "message": 5}, "content isn't a text"),
        ({"op": "replace", "content": "x"}, "names nothing to work on (give exactly one of message, select)"),
        ({"op": "replace", "message": 5, "tokens": [1], "content": "x"}, "(replace): there is no field 'tokens'"),
        ({"op": "replace", "select": "thinking", "content": "x"}, "thinking can't be replaced"),
    ],
)
def test_what_cache_ops_cannot_mean_is_refused_by_number_and_name(operation: Any, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        from_wire([operation])
    assert said in str(refused.value)


def test_too_many_operations_are_refused_before_any_is_read() -> None:
    with pytest.raises(BadRequest, match="holds 4097 operations; at most 4096"):
        from_wire([{"op": "nonsense"}] * (MAX_OPS + 1))


def test_akv_s_fields_take_effect_right_before_their_trigger_drop_first() -> None:
    asked = from_akv({"8": [3, 4, 3], "5": [2], "6": []}, [8, 3], None, message_count=9)
    assert asked.ops == (ReposAt(at=3), DropMessages((2,), at=5), DropMessages((3, 4), at=8), ReposAt(at=8))
    assert asked.policy is None


def test_a_trigger_beyond_the_history_is_ignored_and_reported() -> None:
    asked = from_akv({"9": [3], "10": [3]}, [12], None, message_count=9)
    assert asked.ops == (DropMessages((3,), at=9),)
    assert asked.notes == (
        'drop_message["10"]: message 10 is beyond the history of 9; ignored',
        "reposition[0]: message 12 is beyond the history of 9; ignored",
    )


@pytest.mark.parametrize(
    "rule", [{"role": "tool", "keep_last": 2}, {"type": "tool_rolling", "keep": 2}, {"keep_last": 2, "role": "tool"}]
)
def test_a_drop_rule_keeps_the_newest_of_its_role(rule: dict[str, Any]) -> None:
    layout = layout_of("su" + "at" * 5)
    policy = from_akv(None, None, rule, message_count=12).policy
    assert policy is not None
    compiled = compile_ops(layout, rules=policy.bound(1000))
    assert [op for op in compiled.ops if isinstance(op, DropMessages)] == [
        DropMessages((3,), at=8),
        DropMessages((5,), at=10),
        DropMessages((7,), at=12),
    ]


def test_a_drop_rule_that_keeps_none_drops_all() -> None:
    policy = from_akv(None, None, {"role": "tool", "keep_last": 0}, message_count=4).policy
    assert policy is not None
    assert compile_ops(layout_of("uata"), rules=policy.bound(9)).ops == (DropMessages((2,), at=3),)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"drop_message": [3]}, "drop_message isn't an object"),
        ({"drop_message": {"x": [3]}}, 'drop_message["x"]: the trigger isn\'t the number of a message'),
        ({"drop_message": {"-1": [3]}}, "the trigger isn't the number of a message"),
        ({"drop_message": {"8": 3}}, 'drop_message["8"] is 3, which isn\'t a list'),
        ({"reposition": {"8": 1}}, "reposition is {'8': 1}, which isn't a list"),
        ({"reposition": [-1]}, "reposition[0] is -1; the first message is 0"),
        ({"drop_rule": {"role": "tool"}}, 'understood are {"role": "tool", "keep_last": 12} and'),
        ({"drop_rule": {"type": "other", "keep": 1}}, "isn't known (understood are"),
        ({"drop_rule": {"role": "system", "keep_last": 1}}, "roles tool, assistant, user"),
        ({"drop_rule": {"role": ["tool"], "keep_last": 1}}, "isn't known"),
        ({"drop_rule": {"role": "tool", "keep_last": -1}}, "drop_rule keeps -1; it can't be less than 0"),
        ({"drop_rule": {"role": "tool", "keep_last": "2"}}, "how many to keep is '2', which isn't a whole number"),
        ({"drop_rule": "tool"}, "drop_rule 'tool' isn't known"),
        ({"cache_ops": [{"op": "repos"}], "drop_message": {"1": [0]}}, "akashic.cache_ops and drop_message in one"),
        ({"cache_ops": [{"op": "repos"}], "drop_rule": {"role": "tool", "keep_last": 1}}, "and drop_rule in one"),
        ({"policy": "none", "drop_rule": {"role": "tool", "keep_last": 1}}, "policy and drop_rule in one request"),
        ({"policy": "tool-roling-drop"}, "there is no policy 'tool-roling-drop' (did you mean 'tool-rolling-drop'?)"),
        ({"policy": "tool-rolling-drop:kep=4"}, "has no parameter 'kep' (did you mean 'keep'?)"),
        ({"policy": "tool-rolling-drop:keep=-4"}, "'keep=-4' isn't parameter=number"),
        ({"policy": "tool-rolling-drop:keep=4,keep=5"}, "sets keep twice"),
        ({"policy": "none:keep=4"}, "policy none has no parameter 'keep' (it has none)"),
    ],
)
def test_fields_that_contradict_or_cannot_be_read_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        from_request(message_count=9, **fields)
    assert said in str(refused.value)


def test_a_request_may_bring_operations_and_a_policy() -> None:
    asked = from_request(message_count=4, cache_ops=[{"op": "repos"}], policy="tool-rolling-drop:keep=4,threshold=50%")
    assert asked.ops == (ReposAt(),)
    assert str(asked.policy) == "tool-rolling-drop:keep=4,threshold=50% of window,gain=10% of window"
    assert from_request(message_count=4) == from_request(message_count=4, cache_ops=[], drop_message={}, reposition=[])


def test_a_text_of_a_replacement_by_tokens_is_kept_by_storage_only() -> None:
    op = ReplaceMessage(3, (7, 8), at=5)
    assert from_stored([to_stored(op)]) == [op]
    with pytest.raises(BadRequest, match="there is no field 'tokens'"):
        from_wire([to_stored(op)])
