"""The man page of the op language: its examples are read and run, and it leaves nothing of the language out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from akashic_daemon.program.conditions import COUNTS, RUN_COUNTS
from akashic_daemon.program.grammar import LONGEST_SOURCE_CHARS
from akashic_daemon.program.ledger import KINDS
from akashic_daemon.program.path import MAX_OPS
from akashic_daemon.program.plan import PlanStep, empty_layout, simulate
from akashic_daemon.program.policy import builtin_names, load, parse_policy
from akashic_daemon.program.policy_check import check_policy
from akashic_daemon.program.script import parse_script
from akashic_daemon.program.weave import compile_ops
from akashic_daemon.program.wire import from_wire
from akashic_daemon.trajectory.message import Role
from layouts_strategy import layout_of

PAGE = Path(__file__).resolve().parents[2] / "man" / "man7" / "akashic-ops.7"
SOURCE = PAGE.read_text(encoding="utf-8")
EXAMPLES = [e.replace("\\-", "-") for e in re.findall(r"^\.EX\n(.*?)^\.EE$", SOURCE, re.MULTILINE | re.DOTALL)]
POLICIES = [e for e in EXAMPLES if e.startswith("policy ")]
REQUESTS = [e for e in EXAMPLES if e.startswith("[")]
SCRIPTS = [e for e in EXAMPLES if e not in POLICIES + REQUESTS]
LAYOUT = layout_of("su" + "at" * 10, thinking=[2, 4, 6, 8])
"""What the examples are run on: a question, ten answers that each call a tool."""


def _run(script: str, *, fresh: bool) -> tuple[PlanStep, ...]:
    plan = simulate(
        parse_script(script),
        empty_layout() if fresh else LAYOUT,
        count=lambda _role, text: len(text.split()) + 3,
        read=lambda _path: "the file's text",
    )
    assert plan.failures == ()
    return plan.steps


def test_the_page_has_examples_of_each_sort() -> None:
    assert len(SCRIPTS) >= 3
    assert len(POLICIES) >= 2
    assert len(REQUESTS) >= 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.splitlines()[0])
def test_an_example_script_runs_and_its_assertions_hold(script: str) -> None:
    alone = all(line.startswith("drop ") for line in script.splitlines())
    parts = script.splitlines() if alone else [script]
    steps = [step for part in parts for step in _run(part, fresh=part.startswith("append system"))]
    drops = [step for step in steps if step.text.startswith("drop ")]
    assert drops
    assert all(step.dropped_tokens for step in drops), [s for s in drops if not s.dropped_tokens]


@pytest.mark.parametrize("source", POLICIES, ids=lambda s: s.splitlines()[0])
def test_an_example_policy_has_no_finding_and_does_something(source: str) -> None:
    assert check_policy(source) == []
    assert compile_ops(LAYOUT, rules=parse_policy(source).bound(len(LAYOUT.tokens))).dropped_tokens


@pytest.mark.parametrize("request_body", REQUESTS)
def test_an_example_request_is_valid(request_body: str) -> None:
    compile_ops(LAYOUT, from_wire(json.loads(request_body)), render=lambda _message, _text: (0,))


def test_every_word_of_the_language_stands_on_the_page() -> None:
    text = SOURCE.replace("\\-", "-").replace("\\fB", " ").replace("\\fR", " ")
    words = set(re.findall(r"[a-z_]+(?:-[a-z_]+)*", text))
    grammar = (PAGE.parents[2] / "daemon/akashic_daemon/program/ops.lark").read_text(encoding="utf-8")
    keywords = set(re.findall(r'"([a-z]+)"', grammar)) - {"turn", "token"}
    assert {"append", "older", "rollback", "window"} <= keywords
    assert sorted(keywords - words) == []
    assert sorted({*COUNTS, *RUN_COUNTS, *KINDS, *(r.value for r in Role)} - words) == []
    for name in builtin_names():
        assert {name, *(parameter for parameter, _ in load(name).parameters)} <= words


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"at most {MAX_OPS:,} operations" in SOURCE
    assert f"at most {LONGEST_SOURCE_CHARS:,} characters" in SOURCE


def test_the_page_is_clean_roff() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff here")
    done = subprocess.run([groff, "-man", "-ww", "-Tutf8", str(PAGE)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
