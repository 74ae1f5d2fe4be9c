"""A log read on from marks, cut anywhere, says what it says when it is read in one go: nothing else, nothing less."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.memory import watch
from akashic_daemon.memory.watch import Follower
from akashic_daemon.store.memory.marks import WatchMark

Heard = dict[tuple[str, str], str]


def claude(kinds: list[str]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    answer = 0
    for number, kind in enumerate(kinds):
        line: dict[str, Any] = {"uuid": f"u{number}", "sessionId": "s", "type": "user"}
        content: Any = f"wish {number}"
        if kind in ("begin", "goes on"):
            answer += kind == "begin"
            line |= {"type": "assistant"}
            content = [{"type": "text", "text": f"part {number}"}]
        elif kind == "side":
            line |= {"type": "assistant", "agentId": "a7"}
            content = [{"type": "text", "text": f"beside {number}"}]
        elif kind == "result":
            content = [{"type": "tool_result", "tool_use_id": "c", "content": f"result {number}"}]
        name = f"side{number}" if kind == "side" else f"m{answer}"
        lines.append({**line, "message": {"id": name, "role": line["type"], "content": content}})
    return lines


def codex(kinds: list[str]) -> list[dict[str, Any]]:
    made: dict[str, Callable[[int], dict[str, Any]]] = {
        "begin": lambda n: {"type": "reasoning", "summary": [{"type": "summary_text", "text": f"thought {n}"}]},
        "goes on": lambda n: {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": f"part {n}"}],
        },
        "side": lambda n: {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": f"c{n}"},
        "result": lambda n: {"type": "function_call_output", "call_id": "c", "output": f"result {n}"},
        "user": lambda n: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"wish {n}"}]},
    }
    head = {"type": "session_meta", "payload": {"id": "s"}}
    return [head, *({"type": "response_item", "payload": made[kind](n)} for n, kind in enumerate(kinds))]


def read_on(mark: WatchMark, path: Path, heard: Heard, *, quiet_s: float) -> WatchMark:
    """Read with a new follower, as after a restart; hearing the same again must be the same."""
    follower = Follower(mark)
    while (step := follower.look(path, now_s=0.0, quiet_s=quiet_s)) is not None:
        for source, said in step.said:
            for one in said:
                assert heard.setdefault((source, one.reference), one.text) == one.text
        assert step.problems == ()
    return follower.mark


@pytest.mark.parametrize("form", [claude, codex])
@given(
    kinds=st.lists(st.sampled_from(["user", "begin", "goes on", "side", "result"]), min_size=1, max_size=25),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    step_bytes=st.sampled_from([1 << 20, 400]),
)
@settings(max_examples=60, deadline=None)
def test_restarts_at_any_byte_change_nothing(form: Any, kinds: list[str], cuts: list[float], step_bytes: int) -> None:
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in form(kinds))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "STEP_BYTES", step_bytes)
        path = Path(folder, "s.jsonl")
        path.write_bytes(whole)
        stat = path.stat()
        begin = WatchMark("s", stat.st_dev, stat.st_ino)
        at_once: Heard = {}
        end = read_on(begin, path, at_once, quiet_s=-1e12)
        heard: Heard = {}
        mark = begin
        for cut in sorted(cuts):
            # Written again up to there: the same file, shorter.
            path.write_bytes(whole[: int(cut * len(whole))])
            mark = read_on(mark, path, heard, quiet_s=1e12)
        path.write_bytes(whole)
        assert read_on(mark, path, heard, quiet_s=-1e12) == end
        assert heard == at_once
        assert end.offset_bytes == len(whole)
