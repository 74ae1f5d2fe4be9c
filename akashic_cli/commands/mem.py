"""`akashic mem`: what the daemon remembers over sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from akashic_cli import complete, pick
from akashic_cli.commands.mem_watch import watch
from akashic_cli.options import HomeOption, JsonOption, NamespaceOption, NamespacesOption, NoAutostartOption
from akashic_cli.quantities import AfterOption, AtOption, BeforeOption

app = typer.Typer(no_args_is_help=True, help="Look at long-term memory, search it, add to it, and forget.")
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Most turns.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without, only say what would go.")]


@app.command()
def inspect(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="CHUNK|SESSION",
            help="A chunk (c3), a turn (t12), a statement (r5), or a session; all chunks when absent.",
            autocompletion=complete.sessions,
        ),
    ] = None,
    namespaces: NamespacesOption = None,
    state: Annotated[
        str | None, typer.Option("--state", metavar="STATE", help="Chunks that are open, waiting or reconciled.")
    ] = None,
    extents: Annotated[
        bool, typer.Option("--map", help="Draw which chunks lie beside each other on the disk.")
    ] = False,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Show a chunk as a card, a session's chunks, or a list of all; rho is the share of the text that compacting keeps."""
    from akashic_cli.client import connect
    from akashic_cli.render import memory as render
    from akashic_cli.render.output import print_json
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.memory import ChunkCard, ChunkList, History

    if state not in (None, "open", "waiting", "reconciled"):
        raise UsageError(f"listing chunks in state {state!r}: there is none", hint="open, waiting or reconciled")
    client, _ = connect(autostart=not no_autostart)
    with client:
        kind = render.kind_of(name)
        if kind == "c":
            card = ChunkCard.model_validate(client.get(f"/memory/chunks/{name}"))
            _show(as_json, card.model_dump(), lambda: render.print_card(card))
        elif kind in ("t", "r"):
            found = History.model_validate(client.get(f"/memory/history/{name}"))
            _show(as_json, found.model_dump(), lambda: render.print_history(found))
        else:
            asked = {"namespace": namespaces or [], **({"session": name} if name else {})}
            chunks = ChunkList.model_validate(client.get("/memory/chunks", **asked)).chunks
            chunks = [chunk for chunk in chunks if state is None or chunk.state == state]
            if as_json:
                print_json({"chunks": [chunk.model_dump() for chunk in chunks]})
            elif chunks:
                (render.print_map if extents else render.print_chunks)(chunks)
            else:
                render.say_empty(session=name, is_narrowed=state is not None or bool(namespaces))


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUESTION", help="What to look for, in any words.")],
    namespaces: NamespacesOption = None,
    limit: LimitOption = 10,
    budget: Annotated[
        int | None, typer.Option("--budget", min=1, help="Most tokens together; what doesn't fit is passed over.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each score is made of.")] = False,
    rerank: Annotated[
        bool, typer.Option("--rerank", help="Let memory's model (memory.compactor) put the best of 20 first.")
    ] = False,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Print the turns that fit a question, the best first."""
    from akashic_cli.client import connect
    from akashic_cli.render.memory import print_found, say_nothing_found
    from akashic_cli.render.output import say
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.memory import MemoryStats, SearchRequest, SearchResult

    if not query.strip():
        raise UsageError("searching memory: the question is empty", hint='akashic mem search "where do I live?"')
    request = SearchRequest(query=query, limit=limit, budget_tokens=budget, explain=explain or as_json, rerank=rerank)
    body = request.model_dump(exclude_none=True) | ({"namespaces": namespaces} if namespaces else {})
    client, _ = connect(autostart=not no_autostart)
    with client:
        # A model that ranks may take a minute.
        found = SearchResult.model_validate(client.long("POST", "/memory/search", "searching memory", body=body))
        stats = None if found.found or as_json else MemoryStats.model_validate(client.get("/memory"))
    _show(as_json, found.model_dump(), lambda: print_found(found.found, explain=explain))
    if found.note:
        say(f"note: the order is memory's own: {found.note}")
    if stats is not None:
        say_nothing_found(found, stats)


@app.command()
def add(
    text: Annotated[str, typer.Argument(metavar="TEXT|-", help="What to remember; `-` is stdin.")],
    namespace: NamespaceOption = None,
    speaker: Annotated[str, typer.Option("--speaker", help="Who says it.")] = "user",
    source: Annotated[str, typer.Option("--source", help="Where it is from.")] = "added",
    at: AtOption = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Remember a text; what is known already gets another place of origin."""
    import sys
    import time

    from akashic_cli.client import connect
    from akashic_cli.render.output import say
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.memory import Remembered

    if text == "-":
        text = _decoded(sys.stdin.buffer.read())
    if not text.strip():
        raise UsageError("adding to memory: the text is empty", hint='akashic mem add "I live in Lyon now."')
    turn = {"text": text, "speaker": speaker, "event_at_s": time.time() if at is None else at}
    body: dict[str, Any] = {"turns": [turn], "source": source}
    if namespace is not None:
        body["namespace"] = namespace
    client, _ = connect(autostart=not no_autostart)
    with client:
        # Megabytes take a while on a busy machine, and what was given up on would be in all the same.
        done = Remembered.model_validate(client.long("POST", "/memory/turns", "adding to memory", body=body))
    _show(as_json, done.model_dump(exclude={"kind", "error"}), lambda: print("\n".join(done.turns)))
    if not as_json:
        say(f"{'remembered' if done.new else 'known already'} in {done.namespace}")
        if done.recalled:
            say("note: text that memory itself had put into a conversation was left out")


@app.command()
def history(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            default_factory=pick.chunk,
            show_default=False,
            help="A turn (t12), a chunk (c3) or a statement (r5); on a terminal it may be left out and a chunk chosen.",
        ),
    ],
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="ID", help="A statement that ID doesn't supersede after all: both stay."),
    ] = None,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Show where something comes from: origins, versions, and what supersedes or contradicts what."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.memory import print_history
    from akashic_daemon.protocol.memory import History

    client, _ = connect(autostart=not no_autostart)
    with client:
        if keep is not None:
            client.post("/memory/keep-both", {"newer": name, "older": keep})
        found = History.model_validate(client.get(f"/memory/history/{segment(name)}"))
    _show(as_json, found.model_dump(), lambda: print_history(found))


@app.command()
def forget(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Turns (t12), chunks (c3), statements (r5).")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", help="What a session said.", autocompletion=complete.sessions),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", metavar="QUESTION", help="What a search for it finds.")
    ] = None,
    after: AfterOption = None,
    before: BeforeOption = None,
    namespaces: NamespacesOption = None,
    limit: LimitOption = 20,
    yes: YesOption = False,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Forget turns and all that was made of them: says what would go, and does it with --yes, from the disk too.

    Several options mean what all of them agree on.
    """
    from akashic_cli.client import connect
    from akashic_cli.render.memory import print_forgotten
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.memory import Forgotten

    body: dict[str, Any] = {"ids": ids or [], "dry_run": not yes, "limit": limit}
    given = {"session": session, "query": query, "after_s": after, "before_s": before, "namespaces": namespaces}
    body |= {name: value for name, value in given.items() if value is not None}
    if not ids and len(body) == 3:
        raise UsageError(
            "forgetting: nothing says what",
            hint="name ids, or add --session, --query, --after, --before or --namespace",
        )
    client, _ = connect(autostart=not no_autostart)
    with client:
        done = Forgotten.model_validate(client.long("POST", "/memory/forget", "forgetting", body=body))
    _show(as_json, done.model_dump(exclude={"kind", "error"}), lambda: print_forgotten(done))


@app.command()
def compact(as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None) -> None:
    """Do now what is done when the daemon is idle: reconcile what waits, and give the disk back what isn't needed."""
    from akashic_cli.client import connect
    from akashic_cli.render.memory import print_stats
    from akashic_daemon.protocol.memory import MemoryStats

    client, _ = connect(autostart=not no_autostart)
    with client:
        done = MemoryStats.model_validate(client.long("POST", "/memory/compact", "compacting memory"))
    _show(as_json, done.model_dump(exclude={"kind", "error"}), lambda: print_stats(done))


@app.command()
def stats(as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None) -> None:
    """Say what memory holds, in which namespaces, and what its upkeep does."""
    from akashic_cli.client import connect
    from akashic_cli.render.memory import print_stats
    from akashic_daemon.protocol.memory import MemoryStats

    client, _ = connect(autostart=not no_autostart)
    with client:
        found = MemoryStats.model_validate(client.get("/memory"))
    _show(as_json, found.model_dump(exclude={"kind", "error"}), lambda: print_stats(found))


app.command("watch")(watch)


@app.command("export")
def export_memory(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    namespaces: NamespacesOption = None,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Write every turn with its origins as NDJSON, one a line; `akashic mem import` reads it back."""
    import json

    from akashic_cli.client import connect
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.memory import say_empty

    count = 0

    def counted(turns: Iterable[Any]) -> Iterator[str]:
        nonlocal count
        for turn in turns:
            count += 1
            yield json.dumps(turn, ensure_ascii=False) + "\n"

    client, _ = connect(autostart=not no_autostart)
    with client, client.stream("GET", "/memory/export", params={"namespace": namespaces or []}) as turns:
        if output is not None:
            write_atomically(output, (line.encode("utf-8", "replace") for line in counted(turns)))
        else:
            for line in counted(turns):
                print(line, end="")
    if not count:
        say_empty(session=None, is_narrowed=bool(namespaces))


@app.command("import")
def import_memory(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="What `mem export` wrote; `-` is stdin.")],
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Take in what `akashic mem export` wrote; reading it again changes nothing."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import say
    from akashic_cli.render.units import count
    from akashic_cli.uploads import chunks_of, open_source
    from akashic_daemon.protocol.memory import Remembered

    source = open_source(file)
    client, _ = connect(autostart=not no_autostart)
    with client, source.file:
        doing = f"importing memory from {source.label}"
        done = Remembered.model_validate(client.long("POST", "/memory/import", doing, content=chunks_of(source)))
    told = f"{count(done.new)} new turns, {count(done.known)} known ones"
    if not (done.new or done.known):
        told = f"{source.label} has no turns; `akashic mem export` writes what is read here"
    _show(as_json, done.model_dump(include={"new", "known"}), lambda: say(told))


def _decoded(data: bytes) -> str:
    from akashic_daemon.errors import UsageError

    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"reading stdin: it is no UTF-8 at byte {error.start}", hint="give UTF-8 text") from error


def _show(as_json: bool, value: Any, show: Any) -> None:
    from akashic_cli.render.output import print_json

    if as_json:
        print_json(value)
    else:
        show()
