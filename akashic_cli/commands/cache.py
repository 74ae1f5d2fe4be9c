"""`akashic cache`: what is kept, where, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from akashic_cli.options import HomeOption, JsonOption, NoAutostartOption, SessionArgument
from akashic_cli.quantities import ToOption, UnusedOption

if TYPE_CHECKING:
    from akashic_daemon.protocol.tiers import Pruned, PruneRequest

app = typer.Typer(no_args_is_help=True, help="Look after what is kept.")


@app.command()
def tree(
    depth: Annotated[int, typer.Option("--depth", min=1, max=100, help="Draw so many nodes deep.")] = 12,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Draw what is computed, over all sessions: runs of tokens, and the operations between them."""
    from akashic_cli.client import connect
    from akashic_cli.render.index import print_tree
    from akashic_cli.render.output import print_json
    from akashic_daemon.protocol.context import CacheTree

    client, _ = connect(autostart=not no_autostart)
    with client:
        found = CacheTree.model_validate(client.get("/cache/tree", depth=depth))
    if as_json:
        print_json(found.model_dump())
    else:
        print_tree(found)


@app.command()
def tiers(as_json: JsonOption = False, no_autostart: NoAutostartOption = False, home: HomeOption = None) -> None:
    """Show what engine, RAM and SSD hold, how much of the prompts came from each, and what moved between them."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json
    from akashic_cli.render.tiers import print_tiers
    from akashic_daemon.protocol.tiers import TierReport

    client, _ = connect(autostart=not no_autostart)
    with client:
        report = TierReport.model_validate(client.get("/cache/tiers"))
    if as_json:
        print_json(report.model_dump())
    else:
        print_tiers(report)


@app.command()
def verify(
    fix: Annotated[
        bool, typer.Option("--fix", help="Put damaged blocks into quarantine and remove rows that lead nowhere.")
    ] = False,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Look for damage in what is stored, sessions and KV. Exit code 1 when any is left; answers wait meanwhile."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, print_table, say
    from akashic_cli.render.units import count
    from akashic_daemon.protocol.native import StoreReport

    client, status = connect(autostart=not no_autostart)
    doing = f"verifying {status.database}"
    with client:
        report = StoreReport.model_validate(client.long("GET", "/cache/verify", doing, params={"fix": int(fix)}))
    if as_json:
        print_json(report.model_dump(include={"sessions", "findings"}))
    elif report.findings:
        rows = [(f.store, f.kind, f.subject, f.detail, "yes" if f.is_mended else "no") for f in report.findings]
        print_table(("STORE", "KIND", "SUBJECT", "DETAIL", "MENDED"), rows)
    if not report.findings:
        say(f"{status.database} is whole: {count(report.sessions)} sessions; so is the KV that is stored")
        return
    left = [f for f in report.findings if not f.is_mended]
    if not left:
        say(f"mended: {count(len(report.findings))}; what was damaged is computed again when it is wanted")
        return
    blocks = sum(f.store == "blocks" for f in left)
    say(f"{count(len(left))} found, and {'not mended' if fix else 'left as it is'}")
    if blocks:
        say(f"KV: {count(blocks)}; {'`akashic daemon logs` says more' if fix else '--fix puts it into quarantine'}")
    if len(left) > blocks:
        say(f"sessions: {count(len(left) - blocks)}; restore a backup of {status.database}")
    raise typer.Exit(1)


@app.command()
def prune(
    everything: Annotated[bool, typer.Option("--all", help="Everything in RAM and on SSD.")] = False,
    unused: UnusedOption = None,
    other_models: Annotated[bool, typer.Option("--other-models", help="What isn't the loaded model's.")] = False,
    to: ToOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; without, only say what would go.")] = False,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Remove kept KV: says what would go, and does it with --yes. Sessions stay; their KV is computed again."""
    from akashic_cli.client import connect
    from akashic_cli.render.output import print_json, say
    from akashic_daemon.errors import UsageError
    from akashic_daemon.protocol.tiers import Pruned, PruneRequest

    request = PruneRequest(
        everything=everything, unused_for_s=unused, other_models=other_models, to_bytes=to, dry_run=not yes
    )
    if not (everything or other_models or unused is not None or to is not None):
        raise UsageError(
            "pruning the cache: nothing is named to remove", hint="add --all, --unused 7d, --other-models or --to 2GiB"
        )
    client, _ = connect(autostart=not no_autostart)
    with client:
        body = request.model_dump()
        pruned = Pruned.model_validate(client.long("POST", "/cache/prune", "pruning the cache", body=body))
    if as_json:
        print_json(pruned.model_dump(exclude={"kind", "error"}))
    else:
        print(_pruned_text(pruned, request))
    if pruned.dry_run:
        say("nothing was removed; --yes does it")


def _pruned_text(pruned: Pruned, request: PruneRequest) -> str:
    from akashic_cli.render.units import count, size

    would = "would go" if pruned.dry_run else "removed"
    parts = [f"{would} from SSD: {count(pruned.ssd_blocks)} blocks, {size(pruned.ssd_bytes)}"]
    if request.everything:
        parts.append(f"{would} from RAM: {count(pruned.ram_blocks)} blocks, {size(pruned.ram_bytes)}")
    if not pruned.dry_run:
        parts.append(f"the disk got back {size(pruned.freed_bytes)}")
    if pruned.left:
        parts.append(f"still on the disk: {pruned.left}")
    return "\n".join(parts)


@app.command()
def prefetch(
    session: SessionArgument,
    as_json: JsonOption = False,
    no_autostart: NoAutostartOption = False,
    home: HomeOption = None,
) -> None:
    """Read a session's KV from the SSD tier into RAM, before it is asked for."""
    from akashic_cli.client import connect, segment
    from akashic_cli.render.output import print_json, say
    from akashic_cli.render.units import count, size
    from akashic_daemon.protocol.tiers import Prefetched

    client, _ = connect(autostart=not no_autostart)
    path, doing = f"/sessions/{segment(session)}/prefetch", f"prefetching session {session!r}"
    with client:
        done = Prefetched.model_validate(client.long("POST", path, doing))
    if as_json:
        print_json(done.model_dump(exclude={"kind", "error"}))
    else:
        print(
            f"{count(done.tokens_in_ram)} of {count(done.tokens_known)} stored tokens are in RAM, "
            f"{size(done.bytes_in_ram)}; {size(done.bytes_brought)} came from SSD"
        )
    if done.detail:
        say(done.detail)
