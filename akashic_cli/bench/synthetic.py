"""Made-up agent runs, for who has no recorded ones: the same seed gives the same texts, and no two runs share any."""

from __future__ import annotations

import json
import random

from akashic_cli.bench.transcripts import JsonObject, Run

_VOCABULARY = """
    file error line value test return class import module path index cache token request server client thread lock
    table column user order flight ticket price date city name address status result field check update remove insert
    build deploy branch commit review change merge window button color width height number string list map filter
"""
_WORDS = _VOCABULARY.split()
_TOKENS_A_WORD = 1.4
"""About, for English words and numbers in common vocabularies."""
_SHARE_BEFORE = 0.7
"""Of a run's tokens, so many stand before the first request: the policy and files that an agent begins with."""
GROWING_SHARE_BEFORE = 0.25
"""The same for agents whose history is what grows, as ways to keep it short want it."""


def make_run(number: int, tokens: int, answers: int, *, share_before: float = _SHARE_BEFORE) -> Run:
    """Return a run of about so many tokens with so many answers; each but the first follows a tool's result.

    share_before: of the tokens, what stands before the first request.
    """
    dice = random.Random(f"run {number}")
    each = tokens * (1 - share_before) / answers
    messages: list[JsonObject] = [
        {"role": "system", "content": f"Agent {number}. " + _text(dice, tokens * share_before)},
        {"role": "user", "content": _text(dice, each)},
    ]
    for turn in range(answers):
        call = f"call_{number}_{turn}"
        arguments = json.dumps({"path": _text(dice, 3), "line": dice.randint(1, 999)})
        function = {"id": call, "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        messages.append({"role": "assistant", "content": _text(dice, each * 0.2), "tool_calls": [function]})
        messages.append({"role": "tool", "tool_call_id": call, "content": _text(dice, each * 0.7)})
    return Run(f"synthetic-{number}", messages)


def _text(dice: random.Random, tokens: float) -> str:
    words = max(1, round(tokens / _TOKENS_A_WORD))
    return " ".join(dice.choice(_WORDS) if dice.random() < 0.9 else str(dice.randint(0, 999)) for _ in range(words))
