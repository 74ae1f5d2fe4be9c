"""A conversation on a terminal. Prompts go to stderr, answers to stdout."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from akashic_cli.chat.memory import start_line
from akashic_cli.chat.oneshot import answer_view
from akashic_cli.chat.turn import Answer, new_session_name, policy_line, run_turn, say_cost
from akashic_cli.client import Client, segment
from akashic_cli.render.output import say
from akashic_daemon.errors import AkashicError, DaemonNotRunning, DaemonUnhealthy, StoreUnwritable
from akashic_daemon.paths import ensure_private_dir, find_paths
from akashic_daemon.protocol.native import TurnRequest

HELP = """\
Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves.
/session        say which session this is
/session NAME   go on with another session, or begin it
/context        draw what the model sees of this session
/help           this
/quit           leave
A line that must begin with a slash: put a space before it."""


def converse(client: Client, template: TurnRequest, session: str | None) -> None:
    """Read questions and answer them until the person leaves."""
    talk = Conversation(client, template, session or new_session_name())
    say(f"session {talk.session}; /help shows what is possible")
    say(start_line(template.memory))
    reader = _reader()
    while True:
        # Around the whole round: Ctrl-C may come just when an answer has ended and no line is read yet.
        try:
            if not talk.handle(reader.prompt("> ")):
                return
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


class Conversation:
    """The state of a conversation: which session it is in."""

    def __init__(self, client: Client, template: TurnRequest, session: str) -> None:
        self.client = client
        self.template = template
        self.session = session
        self._told_policy = False

    def handle(self, line: str) -> bool:
        """Do what a line asks; False ends the conversation."""
        command = re.fullmatch(r"/([a-z]+)(?:\s+(.*))?", line.rstrip())
        if command:
            return self._command(command[1], command[2])
        if line.strip():
            self._ask(line.strip())
        return True

    def _command(self, name: str, argument: str | None) -> bool:
        if name == "quit":
            return False
        if name == "help":
            say(HELP)
        elif name == "context":
            self._answering(self._show_context)
        elif name == "session":
            if argument:
                self.session = argument.strip()
            say(f"session {self.session}")
        else:
            say(f"error: unknown command /{name}; /help lists them, a space before the slash sends it as text")
        return True

    def _ask(self, prompt: str) -> None:
        answer = Answer(self.session)
        request = self.template.model_copy(update={"prompt": prompt})

        def ask() -> None:
            with answer_view() as show:
                run_turn(self.client, request, answer, show)
            say_cost(answer)
            if not self._told_policy and (told := policy_line(answer)) is not None:
                say(told)
            self._told_policy = True

        self._answering(ask)

    def _show_context(self) -> None:
        from akashic_cli.render.context import print_context
        from akashic_daemon.protocol.context import ContextView

        print_context(ContextView.model_validate(self.client.get(f"/sessions/{segment(self.session)}/context")))

    def _answering(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KeyboardInterrupt:
            say("stopped; the session keeps what was said")
        except (DaemonNotRunning, DaemonUnhealthy):
            raise
        except AkashicError as error:
            # A refused question doesn't end a conversation.
            say(f"error: {error.message}")
            if error.hint:
                say(f"hint: {error.hint}")


def _reader() -> PromptSession[str]:
    history = find_paths().chat_history
    ensure_private_dir(history.parent)
    try:
        os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreUnwritable(
            f"opening the chat's history {history}: {error.strerror}", hint="fix permissions or free space"
        ) from error
    return PromptSession(
        history=FileHistory(str(history)),
        multiline=True,
        key_bindings=_keys(),
        output=create_output(stdout=sys.stderr),
        prompt_continuation="  ",
    )


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
