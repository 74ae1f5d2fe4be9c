"""`akashic import`: transcripts of other programs become sessions."""

from __future__ import annotations

from typing import Annotated

import typer

from akashic_cli.options import FormatOption, HomeOption, JsonOption, NamespaceOption, NoAutostartOption


def import_transcript(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help="A transcript in any known format, or an exported session; `-` is stdin."
        ),
    ],
    transcript_format: FormatOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the main session.")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Take what was read into long-term memory too, without a chat about it.")
    ] = False,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Read a transcript into sessions and print their names; reading it again adds only what is new.

    A file of `session export --with-kv` is known by its beginning and comes with its KV: take such files only from
    whom you trust.
    """
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, print_table, say
    from akashic_cli.render.units import count
    from akashic_cli.uploads import open_source, remember, say_problems, upload
    from akashic_daemon.errors import UsageError

    if namespace is not None and not memory:
        raise UsageError("importing with --namespace: it names where to remember", hint="add --memory")
    source = open_source(file)
    client, _ = connect(autostart=not no_autostart)
    with client, source.file:
        done = upload(client, source, transcript_format=transcript_format, name=name)
        say_problems(done)
        remembered = [remember(client, s.session, namespace) for s in done.sessions] if memory else []
    if as_json:
        fields = {"format", "read_bytes", "messages", "sessions", "problems"}
        told = done.model_dump(include=fields if done.kv is None else {*fields, "kv"})
        print_json(
            told
            | ({"memory": [r.model_dump(include={"namespace", "new", "known"}) for r in remembered]} if memory else {})
        )
        return
    if done.kv is not None:
        from akashic_cli.warm import say_kv

        say_kv(done.kv)
    say(f"read {count(done.messages)} messages in {done.format or 'an unnamed'} format")
    rows = [
        (s.session, "main" if s.is_main else "side", count(s.messages), count(s.new_messages), s.conversation)
        for s in done.sessions
    ]
    print_table(("SESSION", "KIND", "MESSAGES", "NEW", "CONVERSATION"), rows, right=(2, 3))
    if memory:
        new, known = sum(r.new for r in remembered), sum(r.known for r in remembered)
        say(f"memory: {count(new)} new turns, {count(known)} known ones")
