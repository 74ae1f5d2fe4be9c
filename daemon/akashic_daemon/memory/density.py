"""How densely a text says what it says, told without a model: what kind of content it is, and how much would be kept.

rho is kept length over raw length. Dense kinds (code, logs, tables) are kept but for repeats; of prose a share is kept
that grows with what is new in it. The estimate decides how much fits a chunk before it is sealed; the actual rho is known
after compaction, and both are stored.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from akashic_daemon.memory.words import terms


class Kind(StrEnum):
    """Kinds of content. All but prose are dense."""

    PROSE = "prose"
    CODE = "code"
    LOG = "log"
    TABLE = "table"

    @property
    def is_dense(self) -> bool:
        """Whether it is kept word for word."""
        return self is not Kind.PROSE


@dataclass(frozen=True, slots=True)
class Density:
    """A text's kind, the share of its characters in lines that were seen before, and its estimated rho."""

    kind: Kind
    repeated_share: float
    estimated_rho: float


_CODE_BEGINS = re.compile(
    r"\s*(?:def|class|return|import|from|if|for|while|else|elif|try|except|const|let|var|func|fn|pub|public|"
    r"private|static|async|await|#include|package|use|@\w+|//|/\*|\*|#)(?!\w)|"
    r"\s*[\"']?[\w.-]+[\"']?\s*[:=]\s*[\"'\[{\d]|[+-]\s?\S.*[;{}()=]|@@ |diff |\s*[{\[]\s*[\"'{\[\d]|\s*<[/\w!].*>|"
    r"\s{4,}(?![-*•\d])\S"
)
_CODE_WITHIN = re.compile(r"[{};]\s*$|\w\(.*\)\s*[:{;]?\s*$|=>|->|::|[=!<>]=|\+\+|&&")
_MAYBE_CODE = re.compile(r"[{};(=>:+&]")
"""_CODE_WITHIN fits no line that has none of these: prose is told quickly."""
_LOG_BEGINS = re.compile(
    r"\s+at \S+\(|\s*File \"|[$>#%] \S|(?:\./|/)?[\w.-]+/[\w./-]+(?::\d+)?(?:[:\s]|$)|[-dl][rwxs-]{9}\b|\s*\[[\w/: .-]+\]"
)
_LOG_WITHIN = re.compile(
    r"\d\d:\d\d:\d\d|\b(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FAIL(?:ED)?|PASS(?:ED)?|Traceback|Exception)\b|\w\.\w{1,5}:\d+|[│└├┌─]"
)
_MAYBE_LOG = re.compile(r"[A-Z]{4}|:\d|Traceback|Exception|[│└├┌─]")
_TABLE_BEGINS = re.compile(r"\s*\|.*\|\s*$|[^,\n]+(?:,[^,\s][^,\n]*){3,}$")
_TABLE_WITHIN = re.compile(r"\t.*\t|\S\s{2,}\S+\s{2,}\S")
_MAYBE_TABLE = re.compile(r"\t|\s\s")
_LINE_NUMBER = re.compile(r"^\s*\d+(?:→|\t|: ?|\|)")
"""Tools number the lines of files that they show."""
_MOST_LINES = 400
_MOST_LINE_CHARS = 200
_DENSE_SHARE = 0.4
_FULL_MASS_PER_CHAR = 0.36
"""IDF mass (nats) of new terms a character at which prose would be kept whole: so the mean estimate on LoCoMo is the
mean of what a budget of half leaves."""
_LEAST_RHO = 0.1


def kind_of(text: str) -> Kind:
    """Return what most of the text's characters are; prose when in doubt. Looks at 400 lines at most, spread evenly."""
    lines = [line for line in text.split("\n") if line.strip()]
    lines = lines[:: 1 + len(lines) // _MOST_LINES]
    chars: Counter[Kind] = Counter()
    fenced = False
    for line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        chars[Kind.CODE if fenced else _kind_of_line(line)] += min(len(line), _MOST_LINE_CHARS)
    total = sum(chars.values())
    dense = [(count, kind) for kind, count in chars.items() if kind.is_dense]
    if not dense or sum(count for count, _ in dense) < _DENSE_SHARE * total:
        return Kind.PROSE
    return max(dense)[1]


def _kind_of_line(numbered: str) -> Kind:
    line = _LINE_NUMBER.sub("", numbered[:_MOST_LINE_CHARS])
    if _TABLE_BEGINS.match(line) or (_MAYBE_TABLE.search(line) and _TABLE_WITHIN.search(line)):
        return Kind.TABLE
    if _LOG_BEGINS.match(line) or (_MAYBE_LOG.search(line) and _LOG_WITHIN.search(line)):
        return Kind.LOG
    is_code = _CODE_BEGINS.match(line) or (_MAYBE_CODE.search(line) and _CODE_WITHIN.search(line))
    return Kind.CODE if is_code else Kind.PROSE


def estimate(text: str, idf: Callable[[str], float], seen: Mapping[str, int], lines_seen: set[int]) -> Density:
    """Return the density of a text that is about to be added.

    seen: how often each term was seen before. lines_seen: hashes of lines, to which this text's are added.
    """
    kind = kind_of(text)
    repeated = total = 0
    for line in text.split("\n"):
        total += len(line) + 1
        key = hash(line)
        if len(line) > 1 and key in lines_seen:
            repeated += len(line) + 1
        lines_seen.add(key)
    share = repeated / total
    if kind.is_dense:
        return Density(kind, share, max(1.0 - share, _LEAST_RHO))
    mass = sum(idf(term) / math.sqrt(1 + seen.get(term, 0)) for term in set(terms(text)))
    return Density(kind, share, min(1.0, max(_LEAST_RHO, (1.0 - share) * mass / total / _FULL_MASS_PER_CHAR)))


def gate_tokens(mean_rho: float, *, gate: int = 1024, most: int = 4096) -> int:
    """Return at how many raw tokens the open chunk is sealed.

    Sparse talk fills a chunk later, so that about half a gate is left of it; dense text at the gate.
    """
    return min(most, max(gate, round(gate * 0.5 / max(mean_rho, 0.01))))
