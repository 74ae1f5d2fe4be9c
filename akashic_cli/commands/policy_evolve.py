"""`akashic policy evolve`: search for a policy that costs less on recorded runs and loses no more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from akashic_cli.options import HomeOption, JsonOption


def evolve(
    transcripts: Annotated[list[Path], typer.Argument(metavar="TRANSCRIPT", help="Recorded runs in any known format.")],
    held_out: Annotated[
        list[Path] | None,
        typer.Option("--held-out", metavar="FILE", help="Runs to report on; a third is set aside when absent."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.policy", help="Where the policy goes.")] = Path(
        "evolved.policy"
    ),
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write everything as JSON.")] = None,
    window: Annotated[int, typer.Option("--window", min=256, help="Tokens of the model's window.")] = 8192,
    prices: Annotated[
        str, typer.Option("--prices", metavar="COMPUTED,CACHED,OUTPUT", help="Of a token of each sort.")
    ] = "1,0.1,5",
    seed: Annotated[int, typer.Option("--seed", help="The same seed and generations give the same search.")] = 1,
    evaluations: Annotated[
        int, typer.Option("--evaluations", min=20, help="Most policies that are judged, in whole generations.")
    ] = 400,
    generations: Annotated[
        int | None, typer.Option("--generations", min=0, help="Most generations; those of an earlier search repeat it.")
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, help="For everything; half of it, if a model reads, for the search.")
    ] = 30.0,
    quality_turns: Annotated[
        int, typer.Option("--quality-turns", min=0, help="Answers of a run that the model reads; 0 needs no model.")
    ] = 4,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME|FILE", help="Model that judges quality at the end.")
    ] = None,
    propose_url: Annotated[
        str | None, typer.Option("--propose-url", metavar="URL", help="A server whose model proposes policies too.")
    ] = None,
    propose_model: Annotated[str, typer.Option("--propose-model", help="Model to ask there.")] = "default",
    propose_key_file: Annotated[
        Path | None, typer.Option("--propose-key-file", metavar="FILE", help="Holds the bearer token for it.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, also if an earlier search could go on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing policy file.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Evolve a cache policy on recorded runs and say, on runs set aside, what it is worth against keep-12.

    Cost is counted, not measured; words that answers needed and could no longer see are its counterpart, and for the best
    policies the model's likelihood of the recorded answers. A search that was interrupted, or gets a larger budget (with
    --force), goes on from FILE.policy.state.
    """
    from akashic_cli.bench.child import end_like_an_interrupt
    from akashic_cli.bench.evolving import COLUMNS, Asked, last_words, run, table_rows
    from akashic_cli.render.files import write_atomically
    from akashic_cli.render.output import print_json, print_table, say

    end_like_an_interrupt()
    asked = Asked(
        transcripts,
        held_out or [],
        out,
        window,
        prices,
        seed,
        evaluations,
        generations,
        minutes,
        quality_turns,
        model,
        propose_url,
        propose_model,
        propose_key_file,
        fresh,
        force,
    )
    result = _with_progress(asked, run)
    write_atomically(out, result["policy"])
    if report is not None:
        import json

        write_atomically(report, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if as_json:
        print_json(result)
    else:
        print_table(COLUMNS, table_rows(result), right=range(1, len(COLUMNS)))
    say(f"{result['chosen']}: {result['verdict']}")
    say(last_words(result, out))


def _with_progress(asked: Any, run: Any) -> dict[str, Any]:
    """Run with a progress bar on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from akashic_cli.render.output import err, say

    console = err()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evolving", total=asked.evaluations)

        def told(news: dict[str, Any]) -> None:
            if "generation" in news:
                bar.update(task, completed=news["evaluations"], description=f"generation {news['generation']}")
            elif "scoring" in news:
                bar.reset(task, total=news["of"], description=f"reading with {news['scoring']}")
            elif "scored" in news:
                bar.advance(task)
            elif "note" in news:
                say(f"note: {news['note']}")

        result: dict[str, Any] = run(asked, told)
        return result
