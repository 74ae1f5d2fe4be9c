"""`akashic bench plan`: what a model would do on a machine, before anybody buys or waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from akashic_cli.options import HomeOption, JsonOption

if TYPE_CHECKING:
    from akashic_cli.bench.planning import Question


def plan(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="GGUF, Hugging Face folder, config.json, or a known shape."
        ),
    ] = None,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME|FILE", help="here, h200, h100, a100, rtx-4090, …, or JSON.")
    ] = "here",
    context: Annotated[int, typer.Option("--context", min=1, help="Tokens that a sequence's history has.")] = 8192,
    reused: Annotated[int, typer.Option("--reused", min=0, help="Tokens of the prompt that are cached.")] = 0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences that decode together.")] = 1,
    weights: Annotated[str | None, typer.Option("--weights", help="Format of weights, if not the file's.")] = None,
    kv: Annotated[str, typer.Option("--kv", help="Format of KV: f16, q8_0, fp8, …")] = "f16",
    sparse_blocks: Annotated[
        int, typer.Option("--sparse-blocks", min=0, help="Blocks of 128 tokens that a step attends to; 0 all.")
    ] = 0,
    policy: Annotated[
        str, typer.Option("--policy", help="none, or tool-rolling-drop:keep=N: how much of the history is seen.")
    ] = "none",
    tool_share: Annotated[
        float, typer.Option("--tool-share", min=0, max=1, help="Part of the history that is tool results.")
    ] = 0.7,
    result_tokens: Annotated[int, typer.Option("--result-tokens", min=1, help="Tokens of one tool result.")] = 400,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions whose KV is worth keeping.")] = 8,
    sweep: Annotated[bool, typer.Option("--sweep", help="Search batch, formats and sparse attention.")] = False,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="For --sweep, e.g. 16GiB.")
    ] = None,
    step_limit: Annotated[
        float | None, typer.Option("--step-limit", metavar="MS", min=0.001, help="For --sweep: longest time per token.")
    ] = None,
    ttft_limit: Annotated[
        float | None, typer.Option("--ttft-limit", metavar="S", min=0.001, help="For --sweep: longest first token.")
    ] = None,
    price_limit: Annotated[
        float | None, typer.Option("--price-limit", metavar="PRICE", min=0, help="For --sweep: of a million tokens.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", min=0, help="What the machine costs an hour.")
    ] = None,
    exact_only: Annotated[
        bool, typer.Option("--exact-only", help="For --sweep: no sparse attention, weights as they are.")
    ] = False,
    show_machine: Annotated[bool, typer.Option("--show-machine", help="Print the machine's rates and leave.")] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="Time this machine's engine, fit the rates, and print the errors.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="For --validate: more and longer points.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Say how fast a model would decode and prefill on a machine, what binds, what fits and which tiers pay.

    A roofline: shapes, formats and rates in, seconds out. Nothing is loaded, except by --validate, which also keeps the
    rates of this machine for --machine here.
    """
    from akashic_cli.bench import planning
    from akashic_cli.quantities import parse_bytes
    from akashic_cli.render.output import print_json
    from akashic_daemon.errors import UsageError
    from akashic_daemon.planner.roofline import Setup
    from akashic_daemon.planner.sweep import Limits

    if validate:
        if machine != "here":
            raise UsageError(
                f"validating the machine {machine}: only this one can be timed", hint="leave out --machine"
            )
        _show_errors(planning.validate(model, _told, full=full), as_json=as_json)
        return
    where = planning.machine_of(machine, price_per_hour, _told)
    if show_machine:
        print_json(where.to_json())
        return
    seen = planning.seen_tokens(context, policy, tool_share, result_tokens)
    setup = Setup(seen, batch, kv, sparse_blocks)
    question = planning.Question(planning.shape_of(model, weights), where, setup, min(reused, seen), sessions)
    if not sweep:
        _show_plan(planning.plan(question), question, as_json=as_json)
        return
    try:
        memory = None if memory_limit is None else parse_bytes(memory_limit)
    except ValueError as error:
        raise UsageError(f"reading --memory-limit: {error}") from error
    limits = Limits(memory, None if step_limit is None else step_limit / 1000, ttft_limit, price_limit)
    _show_sweep(planning.search(question, limits, exact_only=exact_only), as_json=as_json)


def _told(news: dict[str, Any]) -> None:
    from akashic_cli.render.output import say

    if "note" in news:
        say(f"note: {news['note']}")
    elif "points" in news:
        say(f"timing {news['model']} at up to {news['points']} points, {news['most_s']} s at most")


def _show_plan(result: dict[str, Any], question: Question, *, as_json: bool) -> None:
    from akashic_cli.bench import planning
    from akashic_cli.render.output import print_json, print_table, say
    from akashic_cli.render.units import size

    if as_json:
        print_json(result)
        return
    print_table(planning.COLUMNS, planning.variant_rows(result), right=(1, 2, 3, 5, 7))
    print()
    print_table(planning.TIER_COLUMNS, planning.tier_rows(result), right=(2, 3, 4, 5, 6))
    machine = question.machine
    say(f"{result['model']} on {machine.name} ({machine.origin}), {size(machine.memory_bytes)} of memory")
    if question.setup.context_tokens > question.shape.window_tokens > 0:
        say(
            f"warning: {question.setup.context_tokens:,} tokens are more than the model's {question.shape.window_tokens:,}"
        )


def _show_sweep(result: dict[str, Any], *, as_json: bool) -> None:
    from akashic_cli.bench import planning
    from akashic_cli.render.output import print_json, print_table, say

    if as_json:
        print_json(result)
        return
    print_table(planning.SWEEP_COLUMNS, planning.sweep_rows(result["rows"]), right=range(2, 8))
    best = result["best"]
    say(f"{result['within']} of {result['tried']} setups keep to the limits")
    if best is None:
        say("no setup keeps to the limits: loosen one, or choose a smaller model or another machine")
    else:
        kind = f"{best['sparse_blocks']} sparse blocks" if best["sparse_blocks"] else "dense attention"
        say(f"best: weights {best['weights']}, KV {best['kv']}, {kind}, batch {best['batch']}")


def _show_errors(result: dict[str, Any], *, as_json: bool) -> None:
    from akashic_cli.bench import planning
    from akashic_cli.render.output import print_json, print_table, say

    if as_json:
        print_json(result)
        return
    print_table(planning.ERROR_COLUMNS, planning.error_rows([*result["here"], *result["published"]]), right=(2, 3, 4))
    say(f"timed with {result['threads']} threads in {result['rounds']} rounds")
    goals = result["goals"]
    for what, worst, goal in (
        ("held-out points of this machine", result["worst_held_out"], goals["held_out"]),
        ("published figures", result["worst_published"], goals["published"]),
    ):
        if worst is not None:
            say(f"{what}: off by at most {100 * worst:.1f} % (goal {100 * goal:.0f} %)")
