"""Names of members that a schema doesn't list, as a grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence

from akashic_daemon.toolcalls.gbnf import PLAIN, Rules, char_class, either, literal


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
    gone = [(ord(head), ord(head)) for head in heads]
    plain = char_class([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), *gone], negated=True)
    options = [f"{plain} {rules.add(PLAIN + '*')} {literal(chr(34))}"]
    options += [f"{literal(head)} {_rest(rules, rest)}" for head, rest in heads.items() if head != "\\"]
    if "" not in taken:
        options.append(literal(chr(34)))
    return rules.add(either(options))
