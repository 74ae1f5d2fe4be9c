"""Policies on real agents' runs: each turn's program goes on from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from akashic_daemon.program.policy import load
from akashic_daemon.program.weave import Compiled, compile_ops
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.transcript import Imported, read_transcript
from layouts_strategy import CHATML, TOOLS_IN_ONE_TURN, rendered_layout

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "replays"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="real runs aren't here")

WINDOW_TOKENS = 16_384
"""Small against the runs, whose tokens are bytes here, so that positions are closed up several times."""


def _history(path: Path) -> list[Message]:
    return [item.message for item in read_transcript(path) if isinstance(item, Imported)]


def _program(template: str, messages: Sequence[Message], spec: str) -> Compiled:
    return compile_ops(rendered_layout(template, messages), rules=load(spec).bound(WINDOW_TOKENS))


@pytest.mark.parametrize("template", [CHATML, TOOLS_IN_ONE_TURN], ids=["chatml", "tools-in-one-turn"])
@pytest.mark.parametrize("spec", ["tool-rolling-drop:keep=1", "window:recent=8,budget=25%"])
@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_each_turn_of_a_real_run_goes_on_from_the_turn_before(path: Path, spec: str, template: str) -> None:
    messages = _history(path)
    before: Compiled | None = None
    for count in range(1, len(messages)):
        if messages[count].role is not Role.ASSISTANT:
            continue
        now = _program(template, messages[:count], spec)
        if before is not None:
            assert now.path.prefix(len(before.path)) == before.path
        before = now
    assert before is not None
    tool_results = sum(m.role is Role.TOOL for m in messages)
    assert before.dropped_tokens > 0 or tool_results <= 1
