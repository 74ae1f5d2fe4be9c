"""`bench run` with real suites on a tiny model: a daemon of its own, and a peer that hangs or talks nonsense."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from akashic_cli.__main__ import main

pytest.importorskip("llama_cpp")
from tiny_gguf import Shape, write_tiny_gguf

pytestmark = pytest.mark.model


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


@pytest.fixture
def babbling() -> Iterator[str]:
    """A server that answers everything with no HTTP at all."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(8)

    def babble() -> None:
        while True:
            try:
                taken, _ = listening.accept()
            except OSError:
                return
            with taken:
                taken.recv(1 << 16)
                taken.sendall(b"moo\r\n\r\n")

    thread = threading.Thread(target=babble, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def test_suites_measure_our_daemon_and_keep_going_past_broken_peers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], hanging: str, babbling: str
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", shape=Shape(layers=1, window=2048))
    run = tmp_path / "run.json"
    turns = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]
    run.write_text(json.dumps({"messages": turns * 3}))
    out = tmp_path / "out.json"
    command = ["bench", "run", "replay", "decode", "--model", str(model), "--transcripts", str(run), "--out", str(out)]
    command += ["--peer", f"slow={hanging}", "--peer", f"cow={babbling}", "--peer-timeout", "0.5", "--json"]
    assert main([*command, "--work-dir", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == found
    ended = {(s["suite"], s["target"]): s for s in found["suites"]}
    assert ended["replay", "akashic"]["status"] == ended["decode", "akashic"]["status"] == "done"
    for peer in ("slow", "cow"):
        assert ended["replay", peer]["status"] == "failed"
        assert "/v1/chat/completions" in ended["replay", peer]["reason"]
    figures = {m["name"]: m["value"] for m in ended["replay", "akashic"]["measures"]}
    assert figures["tokens computed"] > 0
    assert figures["runs that broke off"] == 0
    assert any(m["name"].startswith("decode after") for m in ended["decode", "akashic"]["measures"])
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
