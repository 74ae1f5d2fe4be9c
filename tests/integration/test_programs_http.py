"""Cache programs over HTTP: the fields of akashic and AKV, their usage, and refusals that leave the session as it was."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from watched_service import Watch, driven, watched

CHAT = "/v1/chat/completions"
HISTORY = [
    {"role": "system", "content": "be exact"},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "call one"},
    {"role": "tool", "content": "result one " * 4, "tool_call_id": "1"},
    {"role": "assistant", "content": "call two"},
    {"role": "tool", "content": "result two " * 4, "tool_call_id": "2"},
    {"role": "user", "content": "and now?"},
]
RESULT = len("<>tool\n" + "result one " * 4 + "<>\n") - 2
"""Tokens of a tool result: its marks are one token each, written here as two characters."""
Check = Callable[[httpx.AsyncClient, Watch], Awaitable[None]]


def with_client(home: Path, check: Check) -> None:
    async def run() -> None:
        make = FakeEngine(kv_cells=8192, window_tokens=2048)
        async with watched(home, lambda _n, _p: make) as watch:
            transport = httpx.ASGITransport(create_app(watch.service, token=None))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
                await check(client, watch)
            await watch.check_index()

    with driven():
        asyncio.run(run())


def body(**fields: Any) -> dict[str, Any]:
    akashic = {"session": "s", **fields.pop("akashic", {})}
    return {"messages": HISTORY, "max_tokens": 8, **fields, "akashic": akashic}


def test_akvs_fields_drop_and_move_and_their_usage_says_how_much(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _watch: Watch) -> None:
        plain = (await client.post(CHAT, json=body())).json()
        assert plain["usage"]["drop_skipped_tokens"] == plain["usage"]["repos_tokens"] == 0
        fields = {"drop_message": {"7": [3]}, "reposition": [7]}
        first = (await client.post(CHAT, json=body(**fields))).json()
        assert first["akashic"]["dropped_tokens"] == RESULT
        assert first["usage"]["repos_tokens"] > RESULT
        again = (await client.post(CHAT, json=body(**fields))).json()
        assert again["choices"] == first["choices"]
        assert again["akashic"]["computed_tokens"] == 1
        twice = {"drop_message": {"6": [3], "7": [3, 5]}}
        both = (await client.post(CHAT, json=body(**twice))).json()
        assert both["usage"]["drop_skipped_tokens"] == RESULT
        assert both["akashic"]["dropped_tokens"] == 2 * RESULT

    with_client(home, check)


@pytest.mark.parametrize("rule", [{"role": "tool", "keep_last": 1}, {"type": "tool_rolling", "keep": 1}])
def test_a_drop_rule_keeps_the_newest_of_a_role(home: Path, rule: dict[str, Any]) -> None:
    async def check(client: httpx.AsyncClient, watch: Watch) -> None:
        await client.post(CHAT, json=body())
        done = (await client.post(CHAT, json=body(drop_rule=rule))).json()
        assert done["akashic"]["dropped_tokens"] in (0, RESULT)  # 0 when the pruned text was cheaper
        job = list(watch.jobs.values())[-1]
        assert job.route.visible_tokens == job.prompt_tokens - RESULT

    with_client(home, check)


def test_a_trigger_beyond_the_history_is_ignored_and_said(home: Path) -> None:
    async def check(client: httpx.AsyncClient, _watch: Watch) -> None:
        done = await client.post(CHAT, json=body(drop_message={"99": [3]}))
        assert done.status_code == 200
        assert any("beyond the history of 7" in note for note in done.json()["akashic"]["notes"])

    with_client(home, check)


def ops(*operations: Any, **more: Any) -> dict[str, Any]:
    return {"akashic": {"cache_ops": list(operations), **more}}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such message": (ops({"op": "drop", "messages": [12]}), r"cache_ops\[0\].*no message 12"),
    "below the first": (ops({"op": "drop", "messages": [-1]}), r"cache_ops\[0\].*no message -1"),
    "tokens outside": (ops({"op": "drop", "tokens": [[10, 99999]]}), r"\[10, 99999\) lies outside"),
    "overlapping": (ops({"op": "drop", "tokens": [[60, 70], [65, 72]]}), r"\[65, 72\) overlaps"),
    "backwards": (ops({"op": "drop", "tokens": [[70, 60]]}), "ends before it starts"),
    "system": (ops({"op": "drop", "messages": [0]}), "message 0 is a system message"),
    "newest user": (ops({"op": "replace", "message": 6, "content": "x"}), "newest user message"),
    "scaffolding": (ops({"op": "drop", "tokens": [[0, 3]]}), "protected"),
    "place beyond": (ops({"op": "repos", "at": 8}), "beyond the history of 7"),
    "before it is there": (ops({"op": "drop", "messages": [5], "at": 4}), "isn't complete before message 4"),
    "replaced and gone": (
        ops({"op": "drop", "messages": [3]}, {"op": "replace", "message": 3, "content": "x"}),
        r"cache_ops\[1\].*dropped already",
    ),
    "too many": (ops(*[{"op": "repos"}] * 4097), "4097 operations; at most 4096"),
    "unknown": (ops({"op": "forget", "messages": [3]}), "no operation 'forget'"),
    "unknown field": (ops({"op": "drop", "message": [3]}), "no field 'message'"),
    "two targets": (ops({"op": "drop", "messages": [3], "select": "tool"}), "names messages and select"),
    "not a number": (ops({"op": "drop", "messages": ["3"]}), "isn't a whole number"),
    "no selector": (ops({"op": "drop", "select": "tool[:"}), r"cache_ops\[0\]: select"),
    "both languages": ({**ops({"op": "repos"}), "drop_message": {"5": [3]}}, "cache_ops and drop_message"),
    "two policies": ({"akashic": {"policy": "none"}, "drop_rule": {"role": "tool", "keep_last": 1}}, "both are policies"),
    "unknown policy": ({"akashic": {"policy": "tool-roling-drop"}}, "no policy 'tool-roling-drop'"),
    "unknown parameter": ({"akashic": {"policy": "window:sinks=1"}}, "no parameter 'sinks'"),
    "unknown rule": ({"drop_rule": {"role": "system", "keep_last": 1}}, "drop_rule"),
    "no trigger": ({"drop_message": {"x": [3]}}, "isn't the number of a message"),
    "akv on a system message": ({"drop_message": {"5": [0]}}, "system message"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_program_that_means_nothing_is_refused_and_the_session_stays(home: Path, case: str) -> None:
    fields, message = BAD[case]

    async def check(client: httpx.AsyncClient, watch: Watch) -> None:
        before = (await client.post(CHAT, json=body())).json()
        stored = await watch.service.export_session("s")
        refused = await client.post(CHAT, json=body(**fields))
        assert refused.status_code == 400, refused.text
        said = refused.json()["error"]["message"]
        assert re.search(message, said), said
        assert await watch.service.export_session("s") == stored
        after = (await client.post(CHAT, json=body())).json()
        assert after["choices"] == before["choices"]
        assert after["akashic"]["computed_tokens"] == 1
        assert after["akashic"]["plan"] == "plain"

    with_client(home, check)
