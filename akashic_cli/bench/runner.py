"""Runs suites one after another, keeping what is measured after each; one that fails leaves the others alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from akashic_cli.bench.facts import machine_facts
from akashic_cli.bench.peers import OURS, told
from akashic_cli.bench.record import DONE, FAILED, INTERRUPTED, RUNNING, SKIPPED, Record, SuiteRecord, history, save
from akashic_cli.bench.suites import SUITES, Inputs, Suite, reason_of
from akashic_daemon import __version__
from akashic_daemon.errors import AkashicError, NotFound, UsageError
from akashic_daemon.program.grammar import nearest


class Watcher(Protocol):
    """Is told how it goes. Shares are of the whole run, by the time that suites are expected to take."""

    def started(self, what: str) -> None:
        """Take the suite that begins."""

    def moved(self, share: float) -> None:
        """Take how much of the whole run is done, 0 to 1."""

    def ended(self, record: SuiteRecord) -> None:
        """Take what a suite came to."""


@dataclass(frozen=True, slots=True)
class _Step:
    suite: Suite
    target: str
    seconds: float


def chosen(names: Sequence[str]) -> list[str]:
    """Return the suites that names mean, `all` among them. Raises UsageError with the nearest one."""
    if "all" in names:
        return list(SUITES)
    for name in names:
        if name not in SUITES:
            raise UsageError(
                f"running the bench suite {name!r}: there is none",
                hint=nearest(name, SUITES) or f"all, or some of {', '.join(SUITES)}",
            )
    return [name for name in SUITES if name in names]


def begin(names: Sequence[str], inputs: Inputs, command: str) -> Record:
    """Return a fresh record."""
    now = datetime.now(UTC)
    size = "full" if inputs.is_full else "quick"
    about = {
        "suites": list(names),
        "transcripts": [path.name for path in inputs.transcripts],
        "conversations": [path.name for path in inputs.conversations],
        "model": inputs.model,
        "peers": told(inputs.asked_peers),
    }
    started = now.isoformat(timespec="seconds")
    return Record(f"{now:%Y%m%d-%H%M%S-%f}"[:-3], size, started, __version__, command, machine_facts(), about)


def unfinished(names: Sequence[str], inputs: Inputs) -> Record:
    """Return the newest run that broke off and measured the same. Raises NotFound."""
    wanted = begin(names, inputs, "")
    for record in history()[0]:
        if record.status != DONE and (record.size, record.inputs) == (wanted.size, wanted.inputs):
            return record
    raise NotFound(
        "going on with a bench run: none of these suites and inputs broke off", hint="leave out --resume to begin anew"
    )


def run(record: Record, names: Sequence[str], inputs: Inputs, watcher: Watcher) -> Record:
    """Run what the record doesn't hold yet, and return it. What stops it is kept in it, then goes on."""
    steps = _steps(names, inputs)
    whole_s = sum(step.seconds for step in steps) or 1.0
    done_s = 0.0
    record.status = RUNNING
    for step in steps:
        known = record.find(step.suite.name, step.target)
        if known is None or known.status in {FAILED, INTERRUPTED, RUNNING}:
            if known is not None:
                record.suites.remove(known)
            _one(record, step, inputs, watcher, done_s / whole_s, step.seconds / whole_s)
        done_s += step.seconds
        watcher.moved(done_s / whole_s)
    record.status = FAILED if any(s.status == FAILED for s in record.suites) else DONE
    save(record)
    return record


def _steps(names: Sequence[str], inputs: Inputs) -> list[_Step]:
    steps = []
    for name in names:
        suite = SUITES[name]
        seconds = suite.seconds[inputs.is_full]
        targets = [OURS, *(peer.name for peer in inputs.asked_peers if suite.takes_peers)]
        steps += [_Step(suite, target, seconds) for target in targets]
    return steps


def _one(record: Record, step: _Step, inputs: Inputs, watcher: Watcher, before: float, share: float) -> None:
    found = SuiteRecord(step.suite.name, step.target, RUNNING)
    record.suites.append(found)
    named = step.suite.name if step.target == OURS else f"{step.suite.name} of {step.target}"
    watcher.started(named)
    started_s = time.perf_counter()
    try:
        missing = step.suite.needs(inputs)
        if missing:
            found.status, found.reason = SKIPPED, missing
        else:
            peer = None if step.target == OURS else inputs.peers[step.target]
            found.measures, found.raw = step.suite.run(
                inputs, peer, lambda done: watcher.moved(before + share * min(1.0, done))
            )
            found.status = DONE
    except AkashicError as error:
        found.status, found.reason = FAILED, reason_of(error)
    except KeyboardInterrupt:
        found.status, found.reason, record.status = INTERRUPTED, "it was interrupted", INTERRUPTED
        raise
    finally:
        if found.status == RUNNING:
            found.status, found.reason, record.status = FAILED, "it broke off by a fault of akashic", FAILED
        found.seconds = round(time.perf_counter() - started_s, 3)
        save(record)
        watcher.ended(found)
