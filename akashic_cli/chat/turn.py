"""One turn: send the question, show the answer as it comes, and tell what it cost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from akashic_cli.chat.memory import memory_lines
from akashic_cli.client import Client, segment
from akashic_cli.render.output import err, say
from akashic_cli.render.units import count, duration, rate
from akashic_daemon.errors import AkashicError
from akashic_daemon.protocol.native import Reuse, Timing, TurnEvent, TurnRequest


@dataclass(slots=True)
class Answer:
    """What a turn has given so far; `finished` is the last event."""

    session: str
    parts: list[str] = field(default_factory=list)
    finished: TurnEvent | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.parts)


def new_session_name() -> str:
    """Return a name for a session that has none: when it began, and enough chance to be alone."""
    return f"chat-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def run_turn(client: Client, request: TurnRequest, answer: Answer, show: Callable[[str], None]) -> None:
    """Run one turn in `answer.session`, giving each piece of text to `show` and to `answer`.

    A policy that the request names becomes the session's own, so that later turns go on with it.
    An exception, KeyboardInterrupt too, closes the stream, and so ends the work in the daemon.
    """
    if request.policy is not None:
        client.put(f"/sessions/{segment(answer.session)}/policy", {"policy": request.policy})
    path = f"/sessions/{segment(answer.session)}/turn"
    body = request.model_dump(exclude_none=True)
    with err().status("waiting for the daemon") as spinner, client.stream("POST", path, body=body) as events:
        for raw in events:
            event = TurnEvent.model_validate(raw)
            if event.kind == "text":
                spinner.stop()
                answer.parts.append(event.text)
                show(event.text)
            elif event.kind == "done":
                answer.finished = event
            elif not answer.parts:
                spinner.update(_waiting(event))
    if answer.finished is None:
        raise AkashicError(
            f"asking in session {answer.session}: the answer ended before it was finished",
            hint="`akashic daemon logs` says why; what was generated is in the session",
        )


def _waiting(event: TurnEvent) -> str:
    if event.kind == "progress" and event.prompt_tokens:
        return f"reading the prompt: {count(event.prefilled_tokens)} of {count(event.prompt_tokens)} tokens"
    return "thinking" if event.kind == "thinking" else "reading the prompt"


def say_cost(answer: Answer) -> None:
    """Tell on stderr what the turn reused and computed, how fast it was, and what was left out."""
    done = answer.finished
    if done is None:
        return
    say(cost_line(done))
    for line in notes(done):
        say(line)


def policy_line(answer: Answer) -> str | None:
    """Return what to tell about the policy that edits a session's cache; None without one."""
    reuse = answer.finished.reuse if answer.finished is not None else None
    if reuse is None or reuse.policy is None:
        return None
    return f"policy {reuse.policy}: what it drops was read by what came after; `--policy none` keeps everything"


def cost_line(done: TurnEvent) -> str:
    """Return the line that stands after each answer."""
    reuse, timing = done.reuse or Reuse(), done.timing or Timing()
    speed = rate(done.completion_tokens / timing.decode_s) if timing.decode_s > 0 else "-"
    return (
        f"reused {count(reuse.reused_tokens)} \N{MIDDLE DOT} "
        f"computed {count(reuse.computed_tokens)} of {count(done.prompt_tokens)} prompt tokens \N{MIDDLE DOT} "
        f"first token {duration(timing.first_token_s)} \N{MIDDLE DOT} {speed}"
    )


def notes(done: TurnEvent) -> list[str]:
    """Return what else a person must know of a turn: left-out messages, notes, an answer that was cut."""
    reuse = done.reuse or Reuse()
    lines = []
    if reuse.left_out_messages:
        lines.append(
            f"warning: the history is longer than the window; {count(reuse.left_out_messages)} messages "
            f"({count(reuse.left_out_tokens)} tokens) were left out"
        )
    lines += memory_lines(reuse.memory)
    lines += [f"note: {note}" for note in reuse.notes]
    if done.finish_reason == "length":
        lines.append("note: the answer was cut at its longest; --max-tokens makes it longer")
    return lines
