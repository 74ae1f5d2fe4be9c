"""How many tokens of a prompt are really new, whatever a server reuses: the least that anyone must compute."""

from __future__ import annotations

import json

from akashic_cli.bench.transcripts import JsonObject


class UniqueTokens:
    """Counts, over one run, prompt tokens that stand in no earlier request of it.

    Histories that only grow: the prompt's growth, exact but for the few tokens that open the answer. Edited histories
    shrink and grow at once, so there the share of characters in messages not sent before is taken of the prompt: an
    estimate, the best that a client without the server's tokenizer has.
    """

    def __init__(self, *, is_edited: bool) -> None:
        self.is_edited = is_edited
        self._prompt_tokens = 0
        self._seen: set[str] = set()

    def add(self, messages: list[JsonObject], prompt_tokens: int) -> int:
        """Take in the next request of the run and return how many of its tokens are new."""
        if not self.is_edited:
            new = max(0, prompt_tokens - self._prompt_tokens)
            self._prompt_tokens = max(self._prompt_tokens, prompt_tokens)
            return new
        texts = [json.dumps(message, sort_keys=True) for message in messages]
        fresh = sum(len(text) for text in set(texts) - self._seen)
        self._seen.update(texts)
        return round(prompt_tokens * fresh / max(1, sum(map(len, texts))))
