"""Names of members that a schema doesn't list, as a grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence

from akashic_daemon.toolcalls.gbnf import Rules, either, literal


def other_name(rules: Rules, taken: Sequence[str]) -> str:
    """Return a rule for a name that is none of `taken`, as a JSON string without escapes."""
    if not taken:
        return rules.base("string")
    return rules.add(f'"\\"" {_rest(rules, [json.dumps(n, ensure_ascii=False)[1:-1] for n in taken])}')


def _rest(rules: Rules, taken: Sequence[str]) -> str:
    """Return what may follow, the closing quote included, so that the whole is none of `taken`."""
    heads: dict[str, list[str]] = {}
    for name in taken:
        if name:
            heads.setdefault(name[0], []).append(name[1:])
    plain = '[^"\\\\\\x00-\\x1F' + "".join(_in_class(head) for head in heads) + "]"
    options = [f"{plain} {_any_rest(rules)}"]
    options += [f"{literal(head)} {_rest(rules, rest)}" for head, rest in heads.items() if head != "\\"]
    if "" not in taken:
        options.append('"\\""')
    return rules.add(either(options))


def _any_rest(rules: Rules) -> str:
    return rules.add('[^"\\\\\\x00-\\x1F]* "\\""')


def _in_class(char: str) -> str:
    return f"\\{char}" if char in "]-^\\" else "" if char == '"' else char
