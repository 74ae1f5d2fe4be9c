"""A model that proposes whole policy files over an OpenAI-compatible API; what it says is text, parsed and checked only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httpx

from akashic_daemon.evolve.search import Judged, Search

_TIMEOUT_S = 120.0
_MOST_FAILURES = 3
_SHOWN = 6
_FENCE = re.compile(r"```[\w-]*\n(.*?)```", re.DOTALL)
_LONGEST_CHARS = 4000

_TASK = """You improve cache policies for LLM agents. A policy drops old messages from the KV cache. Answer with one policy file in a
fenced block and nothing else. Lines of a file:
policy candidate
param NAME = NUMBER            or   param NAME = NUMBER% of window
when CONDITION and CONDITION: drop SELECTOR     or   when ...: repos
Conditions compare messages, user_messages, assistant_messages, tool_results, visible_tokens, next_position or free_positions
with a number or sums of parameters. Selectors: tool[:-keep], assistant[:-keep], messages[sink:-recent], tool older than keep turns.
Both figures are to be small: cost, and the share of words that answers needed and that weren't visible any more."""


@dataclass(slots=True)
class ModelProposer:
    """Asks one model; gives up for good after a few failures in a row, and says why."""

    url: str
    model: str
    api_key: str | None = None
    problems: list[str] = field(default_factory=list)
    _failures: int = 0

    def __call__(self, search: Search) -> str | None:
        """Return a proposal."""
        if self._failures >= _MOST_FAILURES:
            return None
        try:
            found = _policy_text(self._ask(search))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError, TypeError) as error:
            self._failed(f"{type(error).__name__}: {error}")
            return None
        if found is None:
            self._failed("the answer holds no policy")
            return None
        self._failures = 0
        return found

    def _failed(self, why: str) -> None:
        self._failures += 1
        self.problems.append(f"asking {self.model} at {self.url} for a policy: {why}"[:500])

    def _ask(self, search: Search) -> Any:
        body = {
            "model": self.model,
            "messages": [{"role": "system", "content": _TASK}, {"role": "user", "content": _results(search)}],
            "max_tokens": 400,
            "seed": search.seed + search.generation,
            "temperature": 0.8,
        }
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = f"{self.url.rstrip('/')}/chat/completions"
        response = httpx.post(url, json=body, headers=headers, timeout=_TIMEOUT_S)
        response.raise_for_status()
        return response.json()["choices"][0]["message"]["content"]


def _results(search: Search) -> str:
    shown: list[Judged] = search.front[:_SHOWN]
    parts = [f"cost {j.train[0]:.0f}, lost {j.train[1]:.3f}:\n```\n{j.draft.source}```" for j in shown]
    refused = [f"refused: {text}" for text in search.refused[-2:]]
    return "\n".join(["The best so far:", *parts, *refused, "Propose another policy that neither of them is."])


def _policy_text(answer: Any) -> str | None:
    if not isinstance(answer, str):
        return None
    fenced = _FENCE.search(answer)
    text = (fenced[1] if fenced else answer).strip()
    start = text.find("policy ")
    if start < 0 or len(text) > _LONGEST_CHARS:
        return None
    lines = text[start:].splitlines()
    return "\n".join(["policy candidate", *lines[1:], ""])
