"""What clients say and what lets them in stands neither in the log, not even in the talkative one, nor where `ps` looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from daemon_process import DaemonProcess

SECRET = "xyzzy-plugh"
SAID: Any = [{"role": "user", "content": f"my word is {SECRET}"}]
TOOL: Any = {"name": f"look_{SECRET.replace('-', '_')}", "description": SECRET, "input_schema": {"type": "object"}}
REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 3, "stream": True, "stop": [SECRET], "user": SECRET}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET * 2000}], "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": {"odd": SECRET}}]}),
    ("/v1/chat/completions", {"messages": SAID, "temperature": SECRET}),
    ("/v1/completions", {"prompt": SECRET, "max_tokens": 3}),
    ("/v1/messages", {"messages": SAID, "system": SECRET, "tools": [TOOL], "max_tokens": 3}),
    ("/v1/responses", {"input": SECRET, "instructions": SECRET, "max_output_tokens": 3, "metadata": {"a": SECRET}}),
    ("/v1/embeddings", {"input": SECRET, "model": "wordllama"}),
    ("/akashic/v1/sessions/mine/turn", {"prompt": SECRET, "max_tokens": 3}),
    ("/akashic/v1/memory/search", {"query": SECRET}),
)


def shown_by_ps(pid: int) -> bytes:
    """Return what a process shows of itself to everybody: its command line and the names of its threads."""
    process = Path(f"/proc/{pid}")
    return (process / "cmdline").read_bytes() + b"".join(p.read_bytes() for p in process.glob("task/*/comm"))


def test_words_and_tokens_of_clients_stand_in_no_log_and_in_no_process_title(home: Path) -> None:
    settings = {"cache.ram_bytes": "1MiB", "cache.ssd_bytes": "16MiB"}
    daemon = DaemonProcess(home, "--window=4096", settings=settings, env={"AKASHIC_LOG_LEVEL": "debug"})
    with daemon:
        statuses = []
        with daemon.client() as client:
            for path, body in REQUESTS:
                whole = json.dumps(body)
                statuses += [client.post(path, content=content).status_code for content in (whole, whole[:-1])]
            statuses.append(client.get(f"/v1/models?{SECRET}").status_code)
        wrong = {"authorization": f"Bearer {SECRET}"}
        statuses.append(httpx.get(f"{daemon.url}/v1/models", headers=wrong).status_code)
        shown = shown_by_ps(daemon.process.pid)
        token = daemon.headers["authorization"].removeprefix("Bearer ")
        assert daemon.end(60) == 0
    told, cut_off = statuses[:-2:2], statuses[1:-2:2]
    refused = {2, 3, 4}  # too long, odd, no number
    assert told == [400 if number in refused else 200 for number in range(len(REQUESTS))]
    assert cut_off == [400] * len(REQUESTS)
    assert statuses[-2:] == [200, 401]
    log = daemon.log.read_text()
    assert " DEBUG " in log
    assert "request=" in log
    for word in (SECRET, SECRET.replace("-", "_"), token):
        assert word not in log
        assert word.encode() not in shown
