"""The op language: what is read, and errors that say where, what and what else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from akashic_daemon.errors import ScriptError
from akashic_daemon.program.conditions import Condition, failures
from akashic_daemon.program.ledger import Ledger
from akashic_daemon.program.script import (
    AppendStep,
    AssertStep,
    BranchStep,
    CheckpointStep,
    DropStep,
    FromFile,
    GenerateStep,
    ReplaceStep,
    ReposStep,
    RollbackStep,
    ShowStep,
    parse_script,
)
from akashic_daemon.program.selectors import ByAge, ByNumber, BySlice, ByTokens, parse, select
from akashic_daemon.trajectory.message import Role
from layouts_strategy import layout_of

EVERY_STATEMENT = """\
# what a script can say
append user "say \\"hi\\"\\n"
append tool <<END   # a tool's answer
  two # lines

END
append assistant file "answer.txt"
drop role=tool older than 4 turns
replace message 5 with "[omitted]"
repos
generate
generate 64 tokens

checkpoint before.prune-1
rollback before.prune-1
branch try:2
assert visible_tokens < 2000 and reused >= 100
show
"""


def test_every_statement_becomes_a_value_with_its_line() -> None:
    steps = parse_script(EVERY_STATEMENT)
    assert steps == [
        AppendStep(2, 'append user "say \\"hi\\"\\n"', Role.USER, 'say "hi"\n'),
        AppendStep(3, "append tool <<END   # a tool's answer", Role.TOOL, "  two # lines\n"),
        AppendStep(7, 'append assistant file "answer.txt"', Role.ASSISTANT, FromFile("answer.txt")),
        DropStep(8, "drop role=tool older than 4 turns", ByAge("tool", 4)),
        ReplaceStep(9, 'replace message 5 with "[omitted]"', ByNumber(5, 5), "[omitted]"),
        ReposStep(10, "repos"),
        GenerateStep(11, "generate", None),
        GenerateStep(12, "generate 64 tokens", 64),
        CheckpointStep(14, "checkpoint before.prune-1", "before.prune-1"),
        RollbackStep(15, "rollback before.prune-1", "before.prune-1"),
        BranchStep(16, "branch try:2", "try:2"),
        AssertStep(
            17,
            "assert visible_tokens < 2000 and reused >= 100",
            (Condition("visible_tokens", "<", 2000), Condition("reused", ">=", 100)),
        ),
        ShowStep(18, "show"),
    ]


@pytest.mark.parametrize("source", ["", "\n\n", "# nothing\n", "repos", "  repos  # now\r\n\r\n"])
def test_blank_lines_comments_and_a_missing_last_newline_are_fine(source: str) -> None:
    assert len(parse_script(source)) == source.count("repos")


@pytest.mark.parametrize(
    ("source", "where", "said"),
    [
        ("dorp tool", (1, 1), "found 'dorp', expected 'append', 'assert',"),
        ("dorp tool", (1, 1), "(did you mean 'drop'?)"),
        (
            "repos\n\n  drop tol[:-1]",
            (3, 8),
            "found 'tol', expected 'memory', 'message', 'messages', 'role', 'thinking'",
        ),
        ("drop tol", (1, 6), "(did you mean 'tool'?)"),
        ("drop tool[", (1, 11), "found the end of the line, expected '-', ':', a name, a number"),
        ("drop", (1, 5), "found the end of the line, expected 'memory', 'message'"),
        ("append user hi", (1, 13), "found 'hi', expected 'file', <<WORD, a text in \"quotes\""),
        ('append robot "hi"', (1, 8), "found 'robot', expected system, user, assistant, tool"),
        ('append user "hi', (1, 13), "expected 'file'"),
        ("append tool <<END\nx\n", (1, 13), "no line says END, so the text after <<END doesn't end"),
        ('append user "a\\q"', (1, 13), "the text has an escape that doesn't exist"),
        ("repos repos", (1, 7), "found 'repos', expected the end of the line"),
        ("generate 4 words", (1, 12), "found 'words', expected 'token', 'tokens'"),
        ("assert mesages == 3", (1, 8), "there is no count 'mesages' (did you mean 'messages'?)"),
        ("assert messages = 3", (1, 17), "expected a comparison (<, <=, ==, !=, >=, >)"),
        ("assert messages == keep", (1, 20), "'keep' has no value here"),
        ("drop tool[:-keep]", (1, 6), "'keep' has no value here (parameters belong to policies"),
        ("drop messages 5..3", (1, 6), "the range ends before it starts: 5..3"),
        ("drop message -1", (1, 6), "counts from the end (numbers start at 0; for the newest write messages[-1])"),
        ('replace thinking with "x"', (1, 9), "thinking can't be replaced (only whole messages can"),
        ('replace tokens 1..2 with "x"', (1, 9), "tokens 1..2 can't be replaced"),
        ("checkpoint a\nrollback b", (2, 10), "no checkpoint 'b' stands above"),
        ("rollback a\ncheckpoint a", (1, 10), "no checkpoint 'a' stands above"),
        ("append user " + '"x"' * 400_000, None, "a script of 1200012 characters; at most"),
    ],
)
def test_a_broken_script_says_where_what_was_found_and_what_was_expected(
    source: str, where: tuple[int, int] | None, said: str
) -> None:
    with pytest.raises(ScriptError) as refused:
        parse_script(source)
    assert said in str(refused.value)
    if where is not None:
        assert (refused.value.details["line"], refused.value.details["column"]) == where
        assert str(refused.value).startswith("line {}, column {}: ".format(*where))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("tool", BySlice("tool")),
        ("role=tool", BySlice("tool")),
        ("tool[:-12]", BySlice("tool", end=-12, sliced=True)),
        ("tool[:]", BySlice("tool", sliced=True)),
        ("tool[0]", BySlice("tool", index=0)),
        ("tool[-1]", BySlice("tool", index=-1)),
        ("assistant[2:5]", BySlice("assistant", start=2, end=5, sliced=True)),
        ("assistant[2 + 3 : 9 - 1]", BySlice("assistant", start=5, end=8, sliced=True)),
        ("messages[-3:]", BySlice("messages", start=-3, sliced=True)),
        ("messages 3..5", ByNumber(3, 5)),
        ("message 3", ByNumber(3, 3)),
        ("tokens 100..200", ByTokens(100, 200)),
        ("role=tool older than 4 turns", ByAge("tool", 4)),
        ("assistant older than 1 turn", ByAge("assistant", 1)),
        ("thinking[:-2]", BySlice("thinking", end=-2, sliced=True)),
    ],
)
def test_selectors_are_read_and_written(text: str, selector: object) -> None:
    assert parse(text) == selector
    assert parse(str(parse(text))) == selector


@pytest.mark.parametrize("text", ["", "tool tool", "tool]", "tool[1:2:3]", "drop tool", "tool\nrepos"])
def test_what_is_not_one_selector_is_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        parse(text)


def _ledger() -> Ledger:
    """Return the account of 0 system, 1 user, then answers 2, 4, 6 with tool results 3, 5, 7; 4 and 5 are dropped."""
    ledger = Ledger()
    for message in layout_of("suatatat", thinking=[2, 6]).messages:
        ledger.append(message)
    ledger.drop_messages((4, 5))
    return ledger


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("tool", (3, 7)),
        ("tool[:-1]", (3,)),
        ("tool[:-0]", (3, 7)),
        ("tool[-0:]", ()),
        ("tool[0:0]", ()),
        ("tool[-1]", (7,)),
        ("tool[5]", ()),
        ("tool[:-12]", ()),
        ("assistant[1:]", (6,)),
        ("messages[2:4]", (2, 3)),
        ("messages 3..5", (3, 4, 5)),
        ("tool older than 0 turns", (3,)),
        ("tool older than 1 turn", (3,)),
        ("tool older than 2 turns", ()),
        ("messages older than 1 turn", (0, 1, 2, 3)),
        ("user older than 99 turns", ()),
    ],
)
def test_slices_count_what_is_visible_and_numbers_count_the_history(text: str, messages: tuple[int, ...]) -> None:
    assert select(parse(text), _ledger()).messages == messages


def test_reasoning_is_selected_as_tokens_inside_its_messages() -> None:
    ledger = _ledger()
    (entry,) = (m for m in ledger.entries if m.index == 2)
    assert select(parse("thinking[:-1]"), ledger).ranges == entry.thinking
    ledger.drop_tokens(entry.thinking, (2,))
    assert ledger.visible["thinking"] == [6]
    assert 2 in ledger.visible["messages"]


def test_an_assertion_that_fails_gives_both_values_and_unknown_counts_are_not_judged() -> None:
    conditions = [Condition("messages", "==", 4), Condition("position", "<", 9), Condition("reused", ">", 1)]
    known = {"messages": 3, "position": 8}
    assert failures(conditions, known.get) == ["messages is 3, expected == 4"]


def test_the_command_line_s_help_does_not_import_the_parser() -> None:
    code = (
        "import sys; from akashic_cli.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "import akashic_daemon.program.wire, akashic_daemon.program.plan, akashic_daemon.program.policy_check\n"
        "print('lark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
