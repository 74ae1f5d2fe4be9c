"""How contexts, explanations, the index and plans are drawn when stdout isn't a terminal.

After a wanted change, `python tests/golden/test_context_golden.py` writes the expected files anew; read their diff.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from akashic_cli.render.context import print_context
from akashic_cli.render.explanation import print_explanation
from akashic_cli.render.index import print_tree
from akashic_cli.script import _print_plan
from akashic_daemon.protocol.context import (
    CacheNode,
    CacheTree,
    ContextMessage,
    ContextOp,
    ContextView,
    ExplainedSegment,
    Explanation,
    ScriptEvent,
)
from akashic_daemon.protocol.native import Miss

FOLDER = Path(__file__).parent / "context"

VIEW = ContextView(
    session="run",
    model="tiny",
    window_tokens=4096,
    messages=[
        ContextMessage(index=0, role="system", label="be brief", tokens=20, visible_tokens=20, positions=[(0, 20)]),
        ContextMessage(index=1, role="user", label="list \x1b[31m", tokens=12, visible_tokens=12, positions=[(20, 32)]),
        ContextMessage(index=2, role="tool", label="a.txt\tb.txt", tokens=300, state="dropped"),
        ContextMessage(
            index=3,
            role="tool",
            tokens=40,
            visible_tokens=8,
            state="partly dropped",
            positions=[(332, 336), (368, 372)],
        ),
        ContextMessage(index=4, role="tool", tokens=40, visible_tokens=9, state="replaced", positions=[(372, 381)]),
        ContextMessage(index=5, role="tool", state="left out", group=(5, 7)),
    ],
    visible_tokens=49,
    next_position=1412,
    dropped_tokens=372,
    policy="tool-rolling-drop:keep=4",
    own_policy=True,
    ops=[
        ContextOp(text="drop message 2", at=6, by="policy", tokens=300, op={"op": "drop", "messages": [2]}),
        ContextOp(text="repos", at=6, by="session", tokens=40, op={"op": "repos"}),
    ],
    notes=["something to know"],
)
EMPTY = ContextView(session="new", model="tiny", window_tokens=4096)
EXPLANATION = Explanation(
    turn=3,
    session="run",
    at_s=1.0,
    model="tiny",
    plan="edited",
    prompt_tokens=2061,
    computed_tokens=101,
    reused_tokens=1960,
    dropped_tokens=300,
    reposed_tokens=900,
    miss=Miss(
        cause="message_replaced", at_token=1960, at_message=3, expected="a\tlong\nlisting", got="[cut]", could_reuse=90
    ),
    notes=["edits became cache operations"],
    segments=[
        ExplainedSegment(message=0, role="system", label="be brief", tokens=60, reused=60),
        ExplainedSegment(message=1, role="tool", label="a file", tokens=1900, reused=1000, moved=900),
        ExplainedSegment(role="gone", tokens=300, dropped=300),
        ExplainedSegment(message=3, role="user", label="and \x07now?", tokens=100, computed=100),
        ExplainedSegment(role="answer", tokens=1, computed=1),
    ],
)
EXACT = EXPLANATION.model_copy(update={"plan": "plain", "notes": [], "dropped_tokens": 0, "reposed_tokens": 0})
WHOLE = EXACT.model_copy(update={"miss": None, "segments": []})
TREE = CacheTree(
    model="tiny",
    cells_total=8192,
    cells_used=1200,
    sequences_total=128,
    sequences_used=3,
    nodes=9,
    roots=[
        CacheNode(
            kind="run",
            tokens=900,
            resident_tokens=900,
            running=1,
            children=[
                CacheNode(
                    kind="drop",
                    tokens=120,
                    resident_tokens=0,
                    children=[CacheNode(kind="repos", tokens=780, resident_tokens=500, hidden_nodes=4)],
                ),
                CacheNode(kind="run", tokens=300, resident_tokens=250),
            ],
        ),
        CacheNode(kind="insert", tokens=5, resident_tokens=0),
    ],
)
PLAN = [
    ScriptEvent(
        kind="step",
        line=1,
        statement="drop tool[:-1]",
        dropped_tokens=1300,
        saved_tokens=2000,
        visible_tokens=700,
        next_position=2000,
    ),
    ScriptEvent(kind="step", line=2, statement="repos", moved_tokens=600, visible_tokens=700, next_position=700),
]
DRAWINGS: dict[str, Callable[[], None]] = {
    "context": lambda: print_context(VIEW),
    "context-empty": lambda: print_context(EMPTY),
    "explanation": lambda: print_explanation(EXPLANATION),
    "explanation-exact": lambda: print_explanation(EXACT),
    "explanation-whole": lambda: print_explanation(WHOLE),
    "index": lambda: print_tree(TREE),
    "index-unloaded": lambda: print_tree(CacheTree()),
    "plan": lambda: _print_plan(PLAN),
}


def drawn(name: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        DRAWINGS[name]()
    return said.getvalue()


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_as_expected(name: str) -> None:
    assert drawn(name) == (FOLDER / f"{name}.expected").read_text(encoding="utf-8")


def test_every_expected_file_belongs_to_a_drawing() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.expected" for name in DRAWINGS}


if __name__ == "__main__":
    for each in DRAWINGS:
        (FOLDER / f"{each}.expected").write_text(drawn(each), encoding="utf-8")
