"""`akashic chat`: one question, or a conversation."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli import complete
from akashic_cli.options import FormatOption, HomeOption, JsonOption, NamespaceOption, NoAutostartOption


def chat(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The question; without it a conversation begins.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            "-s",
            metavar="SESSION",
            help="Session to go on with, or to begin.",
            autocompletion=complete.sessions,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model; the default one when absent.", autocompletion=complete.models),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message of a new session.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer [chat.max_tokens].")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, help="0 is greedy [chat.temperature].")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the sampler, for repeatable answers.")] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="POLICY", help="Cache policy of the session from here on [chat.policy]."),
    ] = None,
    memory: Annotated[
        bool | None,
        typer.Option(
            "--memory/--no-memory", help="Recall what was said in other sessions, and remember this one [memory.chat]."
        ),
    ] = None,
    namespace: NamespaceOption = None,
    transcript_format: FormatOption = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Ask a question, or talk.

    What is piped in on stdin, a transcript in any known format or plain text, becomes the history before PROMPT.
    Plain text without PROMPT is the question itself. With memory on, what doesn't fit the window goes there, and what fits
    the question is recalled.
    """
    from akashic_cli.chat.memory import memory_ask
    from akashic_cli.chat.stdin import find_input
    from akashic_cli.client import connect, require_healthy
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.native import TurnRequest

    given = find_input(prompt, is_transcript=transcript_format is not None)
    if given.prompt is None and as_json:
        raise UsageError("chatting with --json: it needs a question", hint='akashic chat "what next?" --json')
    template = TurnRequest(
        prompt=given.prompt or "",
        model=model,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        policy=policy,
        memory=memory_ask(memory, namespace),
    )
    client, status = connect(autostart=not no_autostart)
    with client:
        require_healthy(status)
        if given.prompt is None:
            from akashic_cli.chat.interactive import converse

            converse(client, template, session)
        else:
            from akashic_cli.chat.oneshot import ask

            ask(client, template, session, given.source, transcript_format=transcript_format, as_json=as_json)
