"""One question: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from akashic_cli.chat.memory import start_line
from akashic_cli.chat.turn import Answer, new_session_name, policy_line, run_turn, say_cost
from akashic_cli.client import Client
from akashic_cli.render.output import print_json, say
from akashic_cli.uploads import Source, main_session, say_problems, upload
from akashic_daemon.protocol.native import TurnRequest


def ask(
    client: Client,
    request: TurnRequest,
    session: str | None,
    source: Source | None,
    *,
    transcript_format: str | None,
    as_json: bool,
) -> None:
    """Import `source` if there is one, ask, and print the answer."""
    if source is not None:
        done = upload(client, source, transcript_format=transcript_format, name=session)
        say_problems(done)
        session = main_session(done, source.label).session
    is_named = session is not None
    answer = Answer(session or new_session_name())
    if not is_named or source is not None:
        say(start_line(request.memory))
    try:
        if as_json:
            run_turn(client, request, answer, lambda _: None)
            print_json(_as_json(answer))
        else:
            with answer_view() as show:
                run_turn(client, request, answer, show)
    except KeyboardInterrupt:
        say(f"stopped; `akashic chat -s {answer.session}` goes on with what was said")
        raise
    say_cost(answer)
    if not is_named or source is not None:
        if (told := policy_line(answer)) is not None:
            say(told)
        say(f"session {answer.session}; `akashic chat -s {answer.session}` goes on with it")


def answer_view() -> AbstractContextManager[Callable[[str], None]]:
    """Return how an answer is shown: as Markdown on a terminal, as it is elsewhere."""
    if sys.stdout.isatty():
        from akashic_cli.render.markdown import MarkdownStream

        return MarkdownStream()
    return _PlainStream()


class _PlainStream(AbstractContextManager[Callable[[str], None]]):
    """Writes text as it comes and ends it with a line end."""

    def __init__(self) -> None:
        self._last = ""

    def __enter__(self) -> Callable[[str], None]:
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._last and not self._last.endswith("\n"):
            print(flush=True)

    def _show(self, text: str) -> None:
        self._last = text or self._last
        print(text, end="", flush=True)


def _as_json(answer: Answer) -> dict[str, object]:
    done = answer.finished
    assert done is not None  # run_turn raises otherwise
    return {
        "session": answer.session,
        "text": answer.text,
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "reuse": done.reuse.model_dump() if done.reuse else None,
        "timing": done.timing.model_dump() if done.timing else None,
    }
