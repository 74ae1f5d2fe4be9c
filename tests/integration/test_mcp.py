"""`akashic mcp`, asked by the official client over stdin and stdout."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.memory.recalled import CLOSING, OPENING
from akashic_daemon.paths import find_paths
from awaited import awaited
from fake_daemon import daemon, on_socket
from fake_service import register

mcp = pytest.importorskip("mcp")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="akm") as name:
        register(Path(name), ["fake"])
        with daemon(Path(name)):
            yield Path(name)


@asynccontextmanager
async def client(home: Path) -> AsyncIterator[Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("AKASHIC_")} | {"AKASHIC_HOME": str(home)}
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "akashic_cli", "mcp", "--no-autostart"], env=env
    )
    async with mcp.Client(server) as connected:
        yield connected


def text(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


@awaited
async def test_the_tools_say_what_they_do_and_which_remove(home: Path) -> None:
    async with client(home) as asked:
        tools = {tool.name: tool for tool in (await asked.list_tools()).tools}
        instructions = asked.instructions or ""
    assert set(tools) == {"memory_search", "memory_add", "memory_forget", "session_list", "session_show"}
    assert all(tool.description for tool in tools.values())
    assert [name for name, tool in tools.items() if tool.annotations.destructive_hint] == ["memory_forget"]
    assert all(field.get("description") for t in tools.values() for field in t.input_schema["properties"].values())
    # Clients hand a tool on as it is, some to APIs that refuse what these leave out, and cut long descriptions.
    assert 0 < len(instructions) < 2000
    for tool in tools.values():
        schema = tool.input_schema
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,50}", tool.name)
        assert len(tool.description) < 1000
        assert schema["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf", "$ref", "$defs"} & schema.keys()
        assert set(schema.get("required", ())) <= schema["properties"].keys()
        assert "$ref" not in json.dumps(schema)
        assert tool.output_schema is None  # what it answers is text
        assert tool.annotations.open_world_hint is False


@awaited
async def test_what_is_added_is_found_and_forgotten_after_a_dry_run(home: Path) -> None:
    zoo = {"namespaces": ["project:zoo"]}
    async with client(home) as asked:
        added = await asked.call_tool("memory_add", {"text": "The parrot eats mangoes.", "namespace": "project:zoo"})
        assert "project:zoo" in text(added)
        again = await asked.call_tool("memory_add", {"text": "The parrot eats mangoes.", "namespace": "project:zoo"})
        assert "Known already" in text(again)
        found = text(await asked.call_tool("memory_search", {"query": "what does the parrot eat?", **zoo}))
        assert found.startswith(OPENING)
        assert found.endswith(CLOSING)
        (turn,) = (line.split(",")[0].lstrip("[") for line in found.splitlines() if "mangoes" in line)
        planned = text(await asked.call_tool("memory_forget", {"ids": [turn]}))
        assert "1 turns would go" in planned
        assert "mangoes" in text(await asked.call_tool("memory_search", {"query": "parrot", **zoo}))
        assert "1 turns are gone" in text(await asked.call_tool("memory_forget", {"ids": [turn], "confirm": True}))
        assert "nothing" in text(await asked.call_tool("memory_search", {"query": "parrot", **zoo}))


@awaited
async def test_long_answers_stay_within_what_clients_take_and_say_what_is_left_out(home: Path) -> None:
    turns = [{"text": f"Herons of pond {n}: " + f"heron{n} " * 400} for n in range(60)]
    with on_socket(find_paths({"AKASHIC_HOME": str(home)})) as native:
        body = {"turns": turns, "namespace": "project:ponds", "source": "ponds"}
        native.post("/akashic/v1/memory/turns", json=body).raise_for_status()
    async with client(home) as asked:
        found = text(
            await asked.call_tool(
                "memory_search", {"query": "herons of ponds", "limit": 60, "namespaces": ["project:ponds"]}
            )
        )
        few = text(await asked.call_tool("memory_search", {"query": "herons", "namespaces": ["project:none"]}))
    assert 40_000 < len(found) < 62_000
    assert "more; ask for fewer" in found
    assert CLOSING in found
    assert few.startswith("Memory has no project:none; it has ")
    assert "project:ponds" in few


@awaited
async def test_what_memory_said_is_not_stored_when_it_is_added(home: Path) -> None:
    async with client(home) as asked:
        await asked.call_tool("memory_add", {"text": "Rent is due on Monday."})
        found = text(await asked.call_tool("memory_search", {"query": "rent"}))
        assert "Nothing was stored" in text(await asked.call_tool("memory_add", {"text": found}))


@awaited
async def test_sessions_are_listed_and_read(home: Path) -> None:
    with on_socket(find_paths({"AKASHIC_HOME": str(home)})) as native:
        body = {"prompt": "Which tea is best?", "max_tokens": 4}
        native.post("/akashic/v1/sessions/tea/turn", json=body).raise_for_status()
    async with client(home) as asked:
        assert "tea" in text(await asked.call_tool("session_list", {}))
        assert "user: Which tea is best?" in text(await asked.call_tool("session_show", {"session": "tea"}))
        missing = await asked.call_tool("session_show", {"session": "coffee"})
        assert missing.is_error
        assert "coffee" in text(missing)


@awaited
async def test_without_a_daemon_a_call_says_what_to_do(tmp_path: Path) -> None:
    async with client(tmp_path / "none") as asked:
        result = await asked.call_tool("memory_search", {"query": "rent"})
    assert result.is_error
    assert "akashic daemon start" in text(result)


@awaited
async def test_wrong_calls_are_errors_that_say_what_is_wrong_and_the_next_one_works(home: Path) -> None:
    wrong: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("memory_search", {}, "query"),
        ("memory_search", {"query": "x", "limit": 0}, "limit"),
        ("memory_search", {"query": "x", "namespaces": ["nowhere"]}, "nowhere"),
        ("memory_add", {"text": ""}, "text"),
        ("memory_add", {"text": "x", "namespace": "nowhere"}, "nowhere"),
        ("memory_forget", {"ids": ["t99999"]}, "t99999"),
        ("memory_forget", {"ids": ["parrot"]}, "write t12 for a turn"),
        ("memory_forget", {"ids": []}, "ids"),
        ("session_show", {"session": "tea", "last": 0}, "last"),
        ("memory_dance", {}, "memory_dance"),
    )
    async with client(home) as asked:
        for tool, arguments, said in wrong:
            try:
                result = await asked.call_tool(tool, arguments)
                told, is_error = text(result), result.is_error
            except mcp.MCPError as error:
                told, is_error = str(error), True
            assert is_error, (tool, arguments, told)
            assert said in told, (tool, arguments)
            assert not (await asked.call_tool("session_list", {})).is_error, (tool, arguments)
