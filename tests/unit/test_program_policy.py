"""Policies and plans: the built-in ones, what `policy check` finds, and what a dry run says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from akashic_daemon.errors import ScriptError
from akashic_daemon.program.layout import Layout
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.message_ops import DropMessages, DropTokens, ReplaceMessage, ReposAt
from akashic_daemon.program.plan import Plan, empty_layout, simulate
from akashic_daemon.program.policy import Amount, builtin_names, builtin_source, load, parse_policy
from akashic_daemon.program.policy_check import Severity, check_policy
from akashic_daemon.program.script import parse_script
from akashic_daemon.program.weave import compile_ops, trace
from akashic_daemon.trajectory.message import Role
from layouts_strategy import layout_of


def _visible(layout: Layout, spec: str, window_tokens: int = 4096) -> Ledger:
    return trace(layout, rules=load(spec).bound(window_tokens))[1]


@pytest.mark.parametrize("name", builtin_names())
def test_a_policy_that_comes_with_akashic_says_what_it_is_for_and_has_no_finding(name: str) -> None:
    policy = load(name)
    assert policy.name == name
    assert policy.about.endswith(".")
    assert check_policy(builtin_source(name)) == []


def test_the_policies_of_the_design_are_there() -> None:
    assert builtin_names() == ["none", "think-drop", "tool-rolling-drop", "window"]


def test_rolling_drop_keeps_all_that_was_said_and_the_newest_tool_results() -> None:
    ledger = _visible(layout_of("su" + "at" * 20), "tool-rolling-drop:keep=4")
    assert ledger.visible["tool"] == [35, 37, 39, 41]
    assert len(ledger.visible["assistant"]) == 20


def test_rolling_drop_closes_positions_up_once_they_pass_the_threshold() -> None:
    layout = layout_of("su" + "at" * 20)
    far = compile_ops(layout, rules=load("tool-rolling-drop:keep=4").bound(4096))
    near = compile_ops(layout, rules=load("tool-rolling-drop:keep=4").bound(160))
    assert not any(isinstance(op, ReposAt) for op in far.ops)
    assert any(isinstance(op, ReposAt) for op in near.ops)
    assert near.visible_tokens == far.visible_tokens
    assert near.next_position < far.next_position == len(layout.tokens)


def test_think_drop_takes_reasoning_out_of_answers_that_stay() -> None:
    layout = layout_of("uauauaua", thinking=[1, 3, 5])
    compiled = compile_ops(layout, rules=load("think-drop:keep=1").bound(4096))
    assert [op for op in compiled.ops if isinstance(op, DropTokens)] == [
        DropTokens(layout.messages[1].thinking, at=5),
        DropTokens(layout.messages[3].thinking, at=7),
    ]
    assert _visible(layout, "think-drop:keep=1").visible["assistant"] == [1, 3, 5, 7]


def test_window_keeps_the_first_and_the_recent_messages_once_the_budget_is_passed() -> None:
    layout = layout_of("su" + "at" * 20)
    assert _visible(layout, "window:recent=6").visible["messages"] == list(range(42))
    assert _visible(layout, "window:recent=6,budget=50").visible["messages"] == [0, 1, *range(36, 42)]


def test_a_policy_leaves_what_is_protected_without_a_word_each_time() -> None:
    layout = layout_of("suattauatta", [5, 5, 5, 5, 0, 5, 5, 5, 5, 0, 5])
    compiled = compile_ops(layout, rules=load("tool-rolling-drop:keep=1").bound(4096))
    assert compiled.ops == (DropMessages((3, 4), at=10),)
    assert compiled.notes == ()


def test_what_memory_recalled_is_not_the_newest_user_message() -> None:
    """So the question before it stays, until the next one comes."""
    layout = layout_of("suaau")
    messages = (*layout.messages[:4], replace(layout.messages[4], recalled=True))
    ledger = _visible(replace(layout, messages=messages), "window:sink=1,recent=1,budget=1")
    assert ledger.visible["messages"] == [0, 1, 4]


def test_none_does_nothing() -> None:
    assert load("none").bound(4096) is None
    assert compile_ops(layout_of("uata"), rules=load("none").bound(4096)).ops == ()


def test_a_policy_that_names_messages_means_those_that_are_there_already() -> None:
    policy = parse_policy("policy x\nwhen messages > 2: drop messages 2..6\n")
    compiled = compile_ops(layout_of("suatata"), rules=policy.bound(100))
    assert compiled.ops == (DropMessages((2, 3), at=4), DropMessages((4, 5), at=6), DropMessages((6,), at=7))


def test_parameters_are_numbers_or_shares_of_the_window() -> None:
    policy = load("tool-rolling-drop:keep=4,threshold=50%")
    assert dict(policy.parameters) == {"keep": Amount(4), "threshold": Amount(50, True), "gain": Amount(10, True)}
    assert Amount(50, True).tokens(8192) == 4096


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("drop tool", "line 1, column 1: found 'drop', expected 'policy'"),
        ("policy x\nwhen tool_results > k: repos", "line 2, column 6: there is no parameter 'k'"),
        ("policy x\nparam keep = 3\nwhen messages > 3: drop tool[:-kep]", "no parameter 'kep' (did you mean 'keep'?)"),
        ("policy x\nwhen reused > 3: repos", "there is no count 'reused'"),
        ("policy x\nwhen messages > 3: generate", "found 'generate', expected 'drop', 'repos'"),
        ("policy x\nparam a = 1\nparam a = 2", "line 3, column 1: parameter 'a' stands above already"),
        ("policy x\nparam messages = 1", "'messages' is a count and can't be a parameter"),
        ("policy x\nwhen messages > 3: repos\nparam a = 1", "line 3, column 1: found 'param', expected 'when'"),
    ],
)
def test_a_policy_that_cannot_be_read_says_where(source: str, said: str) -> None:
    with pytest.raises(ScriptError) as refused:
        parse_policy(source)
    assert said in str(refused.value)
    (finding,) = check_policy(source)
    assert finding.severity is Severity.ERROR
    assert finding.line == refused.value.details["line"]


@pytest.mark.parametrize(
    ("rules", "severity", "said"),
    [
        ("when tool_results > 5 and tool_results < 3: drop tool", "error", "would have to be at least 6 and at most 2"),
        ("when messages < 0: drop tool", "error", "the trigger is never true"),
        ("when messages < 3 and tool_results > 3: drop tool", "error", "at least 4, but messages at most 2"),
        ("when messages >= 0: drop tool[:-3]", "warning", "the trigger is always true"),
        ("when tool_results > 3: repos", "warning", "repos without a condition on positions"),
        ("when messages > 3: drop system", "error", "system messages are protected, so it never drops anything"),
        ("when messages > 3: drop user[-1]", "warning", "the newest user message is protected, so it drops nothing"),
        ("when messages > 3: drop messages[:-3]", "warning", "a system message in it is protected, and stays"),
        ("when messages > 3: drop messages 3..5", "warning", "numbers mean other messages in each history"),
        ("when tool_results > 12: drop tool[:-20]", "warning", "holds from 13 on, when tool[:-20] takes nothing yet"),
        ("when tool_results == 9: drop tool[:-20]", "error", "takes nothing whenever the trigger holds"),
        ("param k = 1", "warning", "parameter k is never used"),
        ("param k = 120% of window\nwhen next_position > k: repos", "error", "more than the window of 8192"),
        ("", "warning", "policy x has no rules, so it does nothing"),
    ],
)
def test_policy_check_finds_what_is_likely_not_meant(rules: str, severity: str, said: str) -> None:
    found = check_policy("policy x\n" + rules)
    assert [f.severity for f in found if said in f.message] == [severity], found


def _words(role: Role, text: str) -> int:
    return len(text.split()) + 2


def _plan(source: str, layout: Layout | None = None) -> Plan:
    files = {"three.txt": "one two three"}
    return simulate(parse_script(source), layout or empty_layout(), count=_words, read=files.__getitem__)


def test_a_plan_tells_what_each_statement_drops_moves_and_saves() -> None:
    plan = _plan(
        'drop tool[:-1]\nrepos\nreplace tool[0] with "gone"\nassert position == 55', layout_of("su" + "at" * 4)
    )
    told = [(s.dropped_tokens, s.moved_tokens, s.saved_tokens, s.visible_tokens, s.next_position) for s in plan.steps]
    assert told == [(15, 0, 26, 43, 58), (0, 26, 0, 43, 43), (5, 0, 0, 41, 43), (0, 0, 0, 41, 43)]
    assert plan.failures == ("line 4: position is 43, expected == 55",)
    assert plan.ops == (DropMessages((3, 5, 7), at=10), ReposAt(at=10), ReplaceMessage(9, "gone", at=10))


def test_a_plan_appends_texts_and_files_and_assumes_answers() -> None:
    plan = _plan(
        'append system "be brief"\nappend user file "three.txt"\ngenerate 20 tokens\ngenerate\nassert messages == 4'
    )
    assert [s.appended_tokens for s in plan.steps] == [4, 5, 20, 64, 0]
    assert plan.steps[3].notes == ("an answer of 64 tokens is assumed",)
    assert plan.failures == ()


def test_a_rollback_takes_a_plan_back_and_reuse_is_left_to_the_real_run() -> None:
    plan = _plan(
        'append user "a"\ncheckpoint one\nappend tool "b"\ndrop tool\nrollback one\nassert messages == 1 and reused > 5'
    )
    assert [s.visible_tokens for s in plan.steps] == [3, 3, 6, 3, 3, 3]
    assert plan.steps[-1].failures == ()
    assert plan.steps[-1].notes == ("reused is known in a real run only; not checked",)


def test_what_was_selected_once_stays_selected_when_the_plan_goes_on() -> None:
    plan = _plan('append user "a"\nappend assistant "b"\ndrop user\nappend user "c"\nassert user_messages == 2')
    assert plan.failures == ()
    assert "message 0 is the newest user message there; it stays" in plan.steps[2].notes[0]


def test_a_plan_that_cannot_be_carried_out_names_the_line() -> None:
    with pytest.raises(ScriptError, match=r"^line 2 \(drop messages 3\.\.5\): .*message 5 doesn't exist there yet; 1 "):
        _plan('append user "a"\ndrop messages 3..5')


def test_rules_are_asked_before_an_answer_and_not_before() -> None:
    statements = parse_script("show\ngenerate 3 tokens")
    rules = load("tool-rolling-drop:keep=1").bound(4096)
    layout = layout_of("ut" + "t" * 5)
    plan = simulate(statements, layout, count=_words, read=str, rules=rules)
    assert [s.dropped_tokens for s in plan.steps] == [0, 25]
