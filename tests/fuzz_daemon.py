"""The daemon that is fuzzed, and what must be true of it at the end."""

from __future__ import annotations

import re
from pathlib import Path

from daemon_process import DaemonProcess
from fake_service import fresh_answer, user

_END_EVERY = 29
_BAD = re.compile(r" (ERROR|CRITICAL) |^Traceback", re.MULTILINE)
_WORDS = "what do you say to this?"


def fuzzed_daemon(home: Path, *flags: str) -> DaemonProcess:
    """Return a daemon with tiers whose engine is soon full."""
    settings = {"cache.ram_bytes": "1MiB", "cache.ssd_bytes": "64MiB", "schedule.max_running": "4"}
    size = ("--cells=8192", "--window=2048", f"--end-every={_END_EVERY}", "--check-end", "--stop-limit=110")
    return DaemonProcess(home, *size, *flags, settings=settings)


def knows_its_prompt(daemon: DaemonProcess) -> None:
    """Fail unless a known prompt is answered as by an engine that has seen nothing else."""
    body = {"messages": [{"role": "user", "content": _WORDS}], "max_tokens": 40}
    with daemon.client() as client:
        answer = client.post("/v1/chat/completions", json=body).json()
        assert client.get("/healthz").json()["healthy"] is True
    said = answer["choices"][0]["message"]["content"]
    assert said == fresh_answer([user(_WORDS)], 40, end_every=_END_EVERY), said


def problems_in_log(daemon: DaemonProcess) -> list[str]:
    """Return what the log says of our own bugs, each with its traceback."""
    entries = re.split(r"(?m)^(?=\d{4}-\d\d-\d\d )", daemon.log.read_text(errors="replace"))
    return [entry.rstrip() for entry in entries if _BAD.search(entry)]


def lost(daemon: DaemonProcess, status: int) -> list[str]:
    """Return what a daemon that has ended didn't give back."""
    text = daemon.log.read_text(errors="replace")
    if status == 0 and "nothing is left" in text:
        return []
    return [f"the daemon ended with status {status}: {text[-3000:]}"]
