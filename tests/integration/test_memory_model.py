"""A model that compacts memory, from end to end: a server over HTTP that answers by the schema, and the loaded model.

What an accepted answer leaves behind, what it cost, and what is kept when the answer is nonsense or doesn't come.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.memory.compactors import ModelCompactor
from akashic_daemon.memory.memory import Said
from akashic_daemon.service import Service
from fake_service import NEVER, running_service
from memory_service import one_embedder

TALK = (
    Said("Ann", "Well, you know, my brother Marco restores violins in Cremona these days, isn't that great?", "1", 1e9),
    Said("Bob", "Oh wow, that is really so nice to hear, thanks a lot for telling me about all of that!", "2", 1e9),
    Said("Ann", "Oh, and before I forget it: the spare key of his workshop hangs behind the barometer.", "3", 1e9),
)
_NUMBERED = re.compile(r"^(\d+)\. (?:\[[^]]*\] )?(\w+): (.*)$", re.MULTILINE)


def facts_by_schema(question: str, schema: dict[str, Any]) -> str:
    """Answer as a capable model would: a fact for each turn that says something, with just the fields of the schema."""
    fields = schema["properties"]["facts"]["items"]["required"]
    facts = []
    for number, speaker, text in _NUMBERED.findall(question.split("Turns:")[1]):
        if "thanks" in text:
            continue
        fact = {"text": f"{speaker}: {text.split(', ', 2)[-1][:60]}", "turns": [int(number)]}
        facts.append({name: fact.get(name, "") for name in fields})
    return json.dumps({"facts": facts})


class Scripted(BaseHTTPRequestHandler):
    """An OpenAI-compatible server; `server.answers` says how it answers: facts, lines, nonsense, or not at all."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, body))
        if server.answers == "hangs":
            server.over.wait()
            return
        schema = body["response_format"]["json_schema"]["schema"]
        text = "Sure thing!"
        if server.answers == "facts":
            text = facts_by_schema(body["messages"][-1]["content"], schema)
        elif server.answers == "lines" and "keep" in schema["properties"]:
            text = json.dumps({"keep": [1]})
        reply = {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 200, "completion_tokens": 34, "total_tokens": 234},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    """Run a server at a port that is free."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.daemon_threads = True
    server.asked, server.answers, server.over = [], "facts", threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def flags(server: Any) -> dict[str, Any]:
    return {"memory.compactor": f"http://127.0.0.1:{server.server_port}/v1", "memory.compactor_model": "m"}


def talking() -> FakeEngine:
    return FakeEngine(kv_cells=65_536, window_tokens=32_768, end_every=NEVER)


async def compacted(service: Service) -> None:
    await service.memory.add("user", TALK, session="s")
    await service.memory.seal("user")
    await service.memory.compact()


def on(home: Path, options: dict[str, Any], check: Any, engine: FakeEngine | None = None) -> None:
    async def run() -> None:
        async with running_service(home, lambda _name, _path: engine or talking(), flags=options) as service:
            await check(service)

    with one_embedder():
        asyncio.run(run())


async def check_facts(service: Service) -> None:
    """Tell that the model's facts stand in memory, each with the turn that it rests on."""
    (chunk,) = [chunk for chunk in await service.memory.chunks() if chunk.sealed_at_s is not None]
    card = await service.memory.chunk(chunk.id)
    (version,) = card.versions
    assert version.made_by == service.memory.worker.compactor.name
    assert "Marco" in version.text
    assert "thanks" not in version.text
    facts = {record.text: record.turn_ids for record in card.records if record.text.startswith("Ann: ")}
    key = next(text for text in facts if "key" in text)
    assert facts[key] == (card.turns[2].id,)
    assert len(facts) == 2
    assert 0 < version.rho < 1
    assert service.memory.problems() == ()


def test_a_server_s_facts_become_the_chunk_s_text_and_records_and_its_tokens_are_counted(
    home: Path, server: Any
) -> None:
    async def check(service: Service) -> None:
        await compacted(service)
        await check_facts(service)
        assert (await service.memory.stats()).model_tokens == 234
        ((path, body),) = server.asked
        assert path == "/v1/chat/completions"
        assert body["response_format"]["json_schema"]["strict"] is True

    on(home, flags(server), check)


def test_the_loaded_model_s_facts_become_the_chunk_s_text_and_its_tokens_are_counted(home: Path) -> None:
    engine = talking()
    ann = [{"subject": "", "slot": "", "value": "", "turns": [n]} for n in (1, 3)]
    ann[0]["text"], ann[1]["text"] = "Ann: my brother Marco restores violins", "Ann: the spare key of his workshop"
    engine.scripts = [json.dumps({"facts": ann})]

    async def check(service: Service) -> None:
        await compacted(service)
        await check_facts(service)
        assert (await service.memory.stats()).model_tokens > 500  # a token a byte here: what was asked and what it said
        assert engine.sampled_with[-1].grammar
        assert (await service.list_sessions()).sessions == []

    on(home, {"memory.compactor": "model"}, check, engine)


def test_a_server_without_usable_facts_chooses_lines_and_the_card_says_so(home: Path, server: Any) -> None:
    server.answers = "lines"

    async def check(service: Service) -> None:
        await compacted(service)
        (chunk,) = [chunk for chunk in await service.memory.chunks() if chunk.sealed_at_s is not None]
        (version,) = (await service.memory.chunk(chunk.id)).versions
        assert version.made_by.endswith("choosing lines")
        assert (await service.memory.stats()).model_tokens == 2 * 234
        assert service.memory.problems() == ()
        assert len(server.asked) == 2

    on(home, flags(server), check)


@pytest.mark.parametrize("answers", ["nonsense", "hangs"])
def test_a_wrong_answer_and_none_leave_what_is_made_without_a_model_and_are_said(
    home: Path, server: Any, answers: str
) -> None:
    server.answers = answers

    async def check(service: Service) -> None:
        compactor = service.memory.worker.compactor
        assert isinstance(compactor, ModelCompactor)
        if answers == "hangs":
            compactor._limit_s = 0.2
        await compacted(service)
        (chunk,) = [chunk for chunk in await service.memory.chunks() if chunk.sealed_at_s is not None]
        (version,) = (await service.memory.chunk(chunk.id)).versions
        assert version.made_by == "extractive"
        assert "barometer" in version.text
        stats = await service.memory.stats()
        assert stats.model_tokens == (2 * 234 if answers == "nonsense" else 0)  # facts, then lines
        why = "no JSON for the schema" if answers == "nonsense" else "gave no answer"
        assert why in stats.problems[0]
        assert any(why in warning for warning in (await service.status()).warnings)
        # The next one that is right ends the problem.
        server.answers = "facts"
        compactor._limit_s = 60
        more = [Said(t.speaker, t.text.replace("Marco", "Paolo"), f"x{t.reference}", t.event_at_s) for t in TALK]
        await service.memory.add("user", more, session="later")
        await service.memory.seal("user")
        await service.memory.compact()
        assert service.memory.problems() == ()

    on(home, flags(server), check)
