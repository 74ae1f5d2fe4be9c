"""Choosing by a few letters, on a terminal, what a command wasn't told by name."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from akashic_daemon.errors import UsageError

_SHOWN = 12
_TITLE_CHARS = 60


def session() -> str:
    """Let the person choose a session, newest first. Raises UsageError where there is no terminal, or no session."""
    if not _is_terminal():
        raise UsageError(
            "choosing a session: none is named, and there is no terminal to choose one on",
            hint="`akashic session list` shows all; give the name of one",
        )
    from akashic_cli.client import connect
    from akashic_daemon.protocol.native import SessionList

    client, _ = connect(autostart=True)
    with client:
        found = SessionList.model_validate(client.get("/sessions")).sessions
    if not found:
        raise UsageError("there is no session yet", hint="`akashic chat`, or `akashic import FILE`, begins one")
    return _choose({s.session: s.title[:_TITLE_CHARS] for s in found}, "session")


def chunk() -> str:
    """Let the person choose a chunk of memory, newest first. Raises UsageError where there is no terminal, or no chunk."""
    if not _is_terminal():
        raise UsageError(
            "choosing a part of memory: none is named, and there is no terminal to choose one on",
            hint="`akashic mem inspect` lists chunks, `mem search` finds turns",
        )
    from akashic_cli.client import connect
    from akashic_cli.render.units import ago, count
    from akashic_daemon.protocol.memory import ChunkList

    client, _ = connect(autostart=True)
    with client:
        found = ChunkList.model_validate(client.get("/memory/chunks")).chunks
    if not found:
        raise UsageError("memory is empty", hint="`akashic mem add`, `mem watch` and `import --memory` fill it")
    told = {c.id: f"{c.namespace}, {c.state}, {count(c.length_tokens)} tokens, {ago(c.created_at_s)}" for c in found}
    return _choose(dict(reversed(told.items())), "chunk")


def matching(letters: str, names: Mapping[str, str]) -> list[str]:
    """Return the names that have these letters in order, in them or in their titles; the nearest together first."""
    pattern = re.compile("(?=(" + ".*?".join(map(re.escape, letters)) + "))", re.IGNORECASE | re.DOTALL)
    ranked: list[tuple[tuple[bool, int, int], int, str]] = []
    for order, (name, title) in enumerate(names.items()):
        for is_title, text in enumerate((name, title)):
            spans = [(len(m[1]), m.start()) for m in pattern.finditer(text)]
            if spans:
                ranked.append(((bool(is_title), *min(spans)), order, name))
                break
    return [name for _, _, name in sorted(ranked)]


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _choose(names: Mapping[str, str], what: str) -> str:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.output import create_output
    from prompt_toolkit.validation import Validator

    class Names(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Sequence[Completion]:
            del complete_event
            found = matching(document.text.strip(), names)
            return [Completion(n, -len(document.text), display_meta=names[n]) for n in found]

    reader: PromptSession[str] = PromptSession(
        completer=Names(), complete_while_typing=True, reserve_space_for_menu=_SHOWN,
        output=create_output(sys.stderr),
        validator=Validator.from_callable(
            lambda text: bool(matching(text.strip(), names)), error_message=f"no {what} has these letters in this order",
            move_cursor_to_end=True,
        ),
    )  # fmt: skip
    try:
        typed = reader.prompt(f"{what}: ").strip()
    except EOFError:
        raise UsageError(f"no {what} was chosen", hint="type a few of its letters, then Enter") from None
    return typed if typed in names else matching(typed, names)[0]
