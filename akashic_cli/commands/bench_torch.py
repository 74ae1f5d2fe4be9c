"""`akashic bench kernels|decode`: the torch engine against what the same machine can do at most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from akashic_cli.options import HomeOption, JsonOption

FullOption = Annotated[bool, typer.Option("--full", help="More sizes, longer ones too.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the shares of the ceilings.")]


def kernels(
    full: FullOption = False, plot: PlotOption = None, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Time the torch engine's kernels against a copy, torch's own attention and the link, measured in the same run.

    On a machine without a CUDA device the references for CPUs are timed instead, and it is said. Needs no daemon.
    """
    _measure("kernels", None, plot, full=full, as_json=as_json)


def decode(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME|FILE|FOLDER", help="Registered model, a GGUF file or a Hugging Face folder."
        ),
    ] = None,
    full: FullOption = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Time a model's decoding on the torch engine against the memory's speed, and transformers where it can open the model.

    Runs on the CPU where no CUDA device is used, and says so. Needs no daemon; the model is loaded apart.
    """
    _measure("decode", model, plot, full=full, as_json=as_json)


def _measure(what: str, model: str | None, plot: Path | None, *, full: bool, as_json: bool) -> None:
    from akashic_cli.bench import torch_suites
    from akashic_cli.bench.plot import require_matplotlib
    from akashic_cli.render.output import print_json, print_table, say

    if plot is not None:
        require_matplotlib()

    def told(news: dict[str, Any]) -> None:
        if "note" in news:
            say(f"note: {news['note']}")

    result = torch_suites.measure(what, model, told, full=full)
    if plot is not None:
        torch_suites.plot(result, plot)
    if as_json:
        print_json(result)
        return
    print_table(torch_suites.COLUMNS, torch_suites.table_rows(result), right=(1, 3))
    for absence in torch_suites.absences(result):
        say(absence)
    say(f"{result['device']}, torch {result['torch']}" + (f", {result['model']}" if result["model"] else ""))
