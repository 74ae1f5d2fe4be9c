"""The demo: commands as a person would type them, run one after the other, with what each is to show."""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from akashic_cli.render.output import say
from akashic_daemon.errors import AkashicError

TRANSCRIPT = Path(__file__).parent / "examples" / "agent.jsonl"
_ASK = ("chat", "--no-memory", "--policy", "none", "--temperature", "0", "--max-tokens", "60")


@dataclass(frozen=True, slots=True)
class Step:
    """One command. said: what it is to show. reads_transcript: its stdin is the transcript."""

    said: str
    command: Sequence[str]
    reads_transcript: bool = False


def steps(session: str) -> list[Step]:
    """Return the demo's course on one session."""
    return [
        Step(
            "An agent's transcript goes in through a pipe, with a question. All of it is computed, once.",
            [*_ASK, "-s", session, "What was the bug?"],
            reads_transcript=True,
        ),
        Step(
            "The next question computes only what is new; the rest is reused.",
            [*_ASK, "-s", session, "How was it mended?"],
        ),
        Step(
            "Old tool output leaves the cache. Elsewhere that is a new prompt; here it is an operation.",
            ["ctx", "drop", session, "tool[0]"],
        ),
        Step("So the next question still computes only what is new.", [*_ASK, "-s", session, "And the test?"]),
        Step("Why it reused what it did, message by message.", ["explain", session]),
    ]


def demonstrate(*, keep: bool) -> None:
    """Run the demo on a session of its own, which is removed at the end. Raises AkashicError when a step fails."""
    session = f"demo-{secrets.token_hex(3)}"
    try:
        for step in steps(session):
            _run(step)
    finally:
        if not keep:
            _quietly(["session", "rm", session])
    if keep:
        say(f"\nsession {session} stays; `akashic chat -s {session}` goes on with it")
    else:
        say("\nthat was all; `akashic chat` begins a conversation of your own")


def _run(step: Step) -> None:
    shown = shlex.join(("akashic", *step.command)) + (f" < {TRANSCRIPT.name}" if step.reads_transcript else "")
    say(f"\n{step.said}\n$ {shown}")
    with open(TRANSCRIPT if step.reads_transcript else "/dev/null", "rb") as stdin:
        done = subprocess.run([sys.executable, "-m", "akashic_cli", *step.command], stdin=stdin, check=False)
    if done.returncode:
        raise AkashicError(
            f"the demo ended at `{shown}`: exit code {done.returncode}", hint="`akashic doctor` looks for what is wrong"
        )


def _quietly(command: Sequence[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "akashic_cli", *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
