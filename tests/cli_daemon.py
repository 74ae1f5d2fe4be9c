"""A stand-in for the daemon: it speaks the wire models on a Unix socket and computes nothing.

As a program, `python cli_daemon.py HOME`, it is a daemon process that holds the lock and ends on SIGTERM.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from akashic_daemon.errors import ConfigError, NotFound
from akashic_daemon.paths import Paths, ensure_private_dir, find_paths
from akashic_daemon.process.facts import code_digest
from akashic_daemon.protocol import PROTOCOL_VERSION, native, tiers

Json = dict[str, Any]
ANSWER = ["Hello ", "from the ", "fake daemon."]


class FakeDaemon(socketserver.ThreadingUnixStreamServer):
    """The server with what it remembers; tests read and change the attributes."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, paths: Paths) -> None:
        ensure_private_dir(paths.runtime_dir)
        self.socket_path = str(paths.socket)
        self.protocol_version = PROTOCOL_VERSION
        self.code = code_digest()
        self.healthy = True
        self.requests: list[tuple[str, str, Any]] = []
        self.conversations = 1
        self.store_findings: list[native.StoreFinding] = []
        self.report = tiers.TierReport()
        self.pruned = tiers.Pruned(dry_run=True, ssd_blocks=3, ssd_bytes=2048)
        self.removed = native.RemovedSession(session="", messages_removed=3, messages_shared=1)
        self.hinted = tiers.Hinted(session="one", is_taken=True, tokens=1234)
        self.model_loaded = True
        self.engine = native.EngineStatus(model="tiny", state="ready", window_tokens=2048)
        self.details: list[native.ModelDetail] = []
        """Models to tell of instead of the one it has."""
        self.tcp: str | None = None
        self.taken_ports: set[int] = set()
        self.import_query: dict[str, str] = {}
        self.turn_error: Json | None = None
        self.hang_after_text = False
        self.stream_closed = threading.Event()
        self.reuse = native.Reuse(reused_tokens=90, computed_tokens=10)
        super().__init__(self.socket_path, _Handler)

    def status(self) -> native.Status:
        return native.Status(
            version="0.1.0",
            code=self.code,
            protocol_version=self.protocol_version,
            pid=os.getpid(),
            started_at_s=1.0,
            uptime_s=2.0,
            healthy=self.healthy,
            health_detail=None if self.healthy else "the step loop stands still",
            socket=self.socket_path,
            tcp=self.tcp,
            database="db",
            engine=self.engine,
            tiers=self.report,
            warnings=list(self.report.problems),
        )


class _Handler(BaseHTTPRequestHandler):
    server: FakeDaemon
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def address_string(self) -> str:
        return "unix"

    def _route(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self._body()
        self.server.requests.append((self.command, unquote(url.path), body if body is not None else query))
        for method, pattern, name in _ROUTES:
            match = re.fullmatch(pattern, url.path)
            if match and method == self.command:
                getattr(self, name)(*map(unquote, match.groups()), query=query, body=body)
                return
        self._json(404, {"error": NotFound(f"no route {self.path}").to_wire()})

    do_GET = do_POST = do_DELETE = _route  # noqa: N815 - http.server's names

    def _body(self) -> Any:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        length = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(length)) if length else None

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _lines(self, lines: Iterator[str], kind: str = "application/x-ndjson") -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        for line in lines:
            self.wfile.write(line.encode() + b"\n")
            self.wfile.flush()

    def healthz(self, **_: Any) -> None:
        self._json(200 if self.server.healthy else 503, {"healthy": self.server.healthy, "detail": "as asked"})

    def status(self, **_: Any) -> None:
        self._json(200, self.server.status().model_dump())

    def listen(self, body: Json, **_: Any) -> None:
        if body["port"] in self.server.taken_ports:
            self._json(400, {"error": ConfigError("the port is taken").to_wire()})
            return
        self.server.tcp = f"http://127.0.0.1:{body['port'] or 40000}"
        self._json(200, native.Listening(tcp=self.server.tcp).model_dump())

    def stats(self, **_: Any) -> None:
        self._json(200, native.Stats(at_s=1, uptime_s=2, requests_total=7).model_dump())

    def stats_stream(self, **_: Any) -> None:
        self._lines(native.Stats(at_s=k, uptime_s=k, requests_total=k).model_dump_json() for k in (1, 2, 3))

    def import_transcript(self, *, query: Mapping[str, str], body: bytes, **_: Any) -> None:
        self.server.import_query = dict(query)
        name = query.get("name", "imported")
        sessions = [
            native.ImportedSession(session=n, conversation=n, messages=2, new_messages=2, is_main=is_main)
            for n, is_main in [(f"{name}-side{k}", False) for k in range(1, self.server.conversations)] + [(name, True)]
        ]
        problem = native.ImportProblem(reason="no JSON", count=3, first_line=17)
        events = [
            native.ImportEvent(kind="progress", read_bytes=len(body), messages=1),
            native.ImportEvent(kind="done", messages=2, format="text", sessions=sessions, problems=[problem]),
        ]
        self._lines(event.model_dump_json() for event in events)

    def verify(self, **_: Any) -> None:
        self._lines(iter([native.StoreReport(sessions=3, findings=self.server.store_findings).model_dump_json()]))

    def cache_tiers(self, **_: Any) -> None:
        self._json(200, self.server.report.model_dump())

    def prune(self, **_: Any) -> None:
        self._lines(iter([self.server.pruned.model_dump_json()]))

    def prefetch(self, name: str, **_: Any) -> None:
        done = tiers.Prefetched(
            session=name, tokens_known=500, tokens_in_ram=400, bytes_in_ram=4096, bytes_brought=1024, detail="no room"
        )
        self._lines(iter([done.model_dump_json()]))

    def hint(self, name: str, **_: Any) -> None:
        self._json(200, self.server.hinted.model_copy(update={"session": name}).model_dump())

    def sessions(self, **_: Any) -> None:
        found = [native.SessionSummary(session="one", title="a\ttitle\x1b[31m", messages=3, updated_at_s=5)]
        self._json(200, native.SessionList(sessions=found).model_dump())

    def session(self, name: str, **_: Any) -> None:
        if name == "missing":
            self._json(404, {"error": NotFound("reading session 'missing'", hint="`akashic session list`").to_wire()})
            return
        view = native.MessageView(index=0, digest="d", tokens=4, message={"role": "user", "content": "hi \x1b]0;x"})
        detail = native.SessionDetail(summary=native.SessionSummary(session=name), messages=[view])
        self._json(200, detail.model_dump())

    def fork(self, name: str, *, body: Json, **_: Any) -> None:
        self._json(200, native.SessionSummary(session=body["name"] or f"{name}-fork").model_dump())

    def export(self, name: str, **_: Any) -> None:
        self._lines(json.dumps({"role": "user", "content": f"{name} é {k}"}, ensure_ascii=False) for k in range(2))

    def remove(self, name: str, **_: Any) -> None:
        self._json(200, self.server.removed.model_copy(update={"session": name}).model_dump())

    def turn(self, name: str, **_: Any) -> None:
        self._lines(self._turn_lines(name))

    def _turn_lines(self, name: str) -> Iterator[str]:
        event = native.TurnEvent
        yield event(kind="start", session=name).model_dump_json()
        yield event(kind="progress", prefilled_tokens=5, prompt_tokens=100).model_dump_json()
        if self.server.turn_error is not None:
            yield event(kind="error", error=self.server.turn_error).model_dump_json()
            return
        for part in ANSWER:
            yield event(kind="text", text=part).model_dump_json()
        if self.server.hang_after_text:
            self.rfile.read(1)  # returns when the client closes its side
            self.server.stream_closed.set()
            return
        timing = native.Timing(first_token_s=0.25, decode_s=0.5)
        yield event(
            kind="done",
            session=name,
            prompt_tokens=100,
            completion_tokens=10,
            finish_reason="stop",
            reuse=self.server.reuse,
            timing=timing,
        ).model_dump_json()

    def models(self, **_: Any) -> None:
        model = native.ModelSummary(name="tiny", path="/m/tiny.gguf", size_bytes=2048, default=True, loaded=True)
        self._json(200, native.ModelList(models=[d.summary for d in self.server.details] or [model]).model_dump())

    def add_model(self, *, body: Json, **_: Any) -> None:
        added = native.ModelSummary(name=body["name"] or Path(body["path"]).stem, path=body["path"], size_bytes=1)
        self._json(200, added.model_dump())

    def model(self, name: str, **_: Any) -> None:
        for detail in self.server.details:
            if detail.summary.name == name:
                self._json(200, detail.model_dump())
                return
        summary = native.ModelSummary(name=name, path="/m/tiny.gguf", size_bytes=2048, loaded=self.server.model_loaded)
        if not self.server.model_loaded:
            self._json(200, native.ModelDetail(summary=summary).model_dump())
            return
        detail = native.ModelDetail(
            summary=summary, capabilities={"drop": True, "repos": False}, why_not={"repos": "the rope is unknown"}
        )
        self._json(200, detail.model_dump())

    def remove_model(self, name: str, **_: Any) -> None:
        self._json(200, native.RemovedModel(name=name, path="/m/tiny.gguf").model_dump())

    def completions(self, *, body: Json, **_: Any) -> None:
        prompt = sum(len(message["content"]) for message in body["messages"])
        if prompt > 10_000:
            self._json(400, {"error": {"code": "prompt_too_long", "message": "the prompt is too long"}})
            return
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": prompt - 1},
        }
        chunks = [
            {"choices": [{"delta": {"content": "x"}}]},
            {"choices": [], "usage": usage, "akashic": {"session": "s"}},
        ]
        lines = [f"data: {json.dumps(chunk)}\n" for chunk in chunks] + ["data: [DONE]\n"]
        self._lines(iter(lines), "text/event-stream")


_NATIVE = "/akashic/v1"
_ROUTES = [
    ("GET", "/healthz", "healthz"),
    ("GET", f"{_NATIVE}/status", "status"),
    ("POST", f"{_NATIVE}/listen", "listen"),
    ("GET", f"{_NATIVE}/stats", "stats"),
    ("GET", f"{_NATIVE}/stats/stream", "stats_stream"),
    ("POST", f"{_NATIVE}/import", "import_transcript"),
    ("GET", f"{_NATIVE}/sessions", "sessions"),
    ("GET", f"{_NATIVE}/sessions/([^/]+)", "session"),
    ("POST", f"{_NATIVE}/sessions/([^/]+)/fork", "fork"),
    ("GET", f"{_NATIVE}/sessions/([^/]+)/export", "export"),
    ("DELETE", f"{_NATIVE}/sessions/([^/]+)", "remove"),
    ("POST", f"{_NATIVE}/sessions/([^/]+)/turn", "turn"),
    ("GET", f"{_NATIVE}/cache/verify", "verify"),
    ("GET", f"{_NATIVE}/cache/tiers", "cache_tiers"),
    ("POST", f"{_NATIVE}/cache/prune", "prune"),
    ("POST", f"{_NATIVE}/sessions/([^/]+)/prefetch", "prefetch"),
    ("POST", f"{_NATIVE}/sessions/([^/]+)/hint", "hint"),
    ("GET", f"{_NATIVE}/models", "models"),
    ("POST", f"{_NATIVE}/models", "add_model"),
    ("GET", f"{_NATIVE}/models/([^/]+)", "model"),
    ("DELETE", f"{_NATIVE}/models/([^/]+)", "remove_model"),
    ("POST", "/v1/chat/completions", "completions"),
]


@contextmanager
def listening() -> Iterator[FakeDaemon]:
    """Let a stand-in answer on the socket of the current home until the block ends."""
    server = FakeDaemon(find_paths())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    """Be a daemon process: lock, serve, end on SIGTERM."""
    paths = find_paths()
    ensure_private_dir(paths.runtime_dir)
    lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock, f"{os.getpid()}\n".encode())
    paths.socket.unlink(missing_ok=True)
    server = FakeDaemon(paths)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print("fake daemon serves", file=sys.stderr, flush=True)
    server.serve_forever(poll_interval=0.02)
    server.server_close()
    paths.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
