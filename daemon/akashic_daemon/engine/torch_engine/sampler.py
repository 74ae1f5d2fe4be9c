"""Choosing tokens, step by step as llama.cpp's chain does: bias, penalties, top-k, top-p, min-p, temperature, chance.

The steps mean the same as there; the random numbers are another generator's, so one seed gives other texts.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.engine.torch_engine.last_logits import Doubles, LastLogits
from akashic_daemon.errors import BadRequest, EngineError
from akashic_daemon.toolcalls.hold import Hold

_HELD = 64
"""So many allowed tokens are chosen from, the likeliest, when top_k doesn't say."""


class TorchSampler:
    """One request's chain. `last` gives the logits of the last step."""

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        last: Callable[[], LastLogits],
        *,
        piece: Callable[[int], bytes],
        is_end: Callable[[int], bool],
    ) -> None:
        self._hold: Hold | None = None
        if params.grammar is not None:
            try:
                self._hold = Hold(params.grammar, params.triggers, piece, is_end)
            except (ValueError, IndexError, RecursionError) as error:
                raise BadRequest(
                    "the grammar can't be parsed", hint="check its GBNF; the start rule is named root"
                ) from error
        bad = [token for token, _ in params.logit_bias if not 0 <= token < vocabulary_size]
        if bad:
            raise BadRequest(f"logit_bias names token {bad[0]}, but the vocabulary has {vocabulary_size} tokens")
        self._params = params
        self._last = last
        self._penalized = bool(
            params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        self._recent: deque[int] = deque(maxlen=max(0, params.penalty_last_tokens))
        self._chance = np.random.default_rng(secrets.randbits(64) if params.seed is None else params.seed & 0xFFFFFFFF)

    def sample(self, item: int) -> int:
        """Choose a token from the last logits of batch item `item` of the last decode, and remember it."""
        last = self._last()
        token = self._choose(last, item)
        if self._hold is not None:
            if not self._hold.allows(token):
                token = self._choose_held(last, item)
            self._hold.accept(token)
        self._recent.append(token)
        return token

    def accept(self, tokens: Sequence[int]) -> None:
        """Let penalties know of `tokens` that were not sampled here."""
        self._recent.extend(tokens)

    def close(self) -> None:
        """Do nothing: it holds nothing but numbers."""

    def _choose(self, last: LastLogits, item: int) -> int:
        own = self._adjusted(last.row(item).float().clone()) if self._params.logit_bias or self._penalized else None
        if self._params.temperature <= 0.0:
            return last.best(item) if own is None else int(own.argmax())
        kept = last.vocabulary_size if self._params.top_k <= 0 else min(self._params.top_k, last.vocabulary_size)
        if own is None:
            values, tokens = last.top(item, kept)
        else:
            best = torch.topk(own, kept)
            values, tokens = best.values.double().cpu().numpy(), best.indices.cpu().numpy()
        count = _kept(values, self._params.top_p, self._params.min_p)
        chances = _softmax(values[:count] / self._params.temperature)
        place = int(np.searchsorted(np.cumsum(chances), self._chance.random(), "right"))
        return int(tokens[min(place, count - 1)])

    def _choose_held(self, last: LastLogits, item: int) -> int:
        """Choose among the likeliest tokens that the grammar allows; the whole vocabulary is gone through if need be."""
        assert self._hold is not None
        logits = last.row(item).float().clone()
        if self._params.logit_bias or self._penalized:
            logits = self._adjusted(logits)
        order = torch.sort(logits, descending=True)
        tokens = order.indices.cpu().tolist()
        allowed = self._hold.allowed(tokens, 1 if self._params.temperature <= 0.0 else self._params.top_k or _HELD)
        if not allowed:
            raise EngineError(
                "answering in a given form: no token of the vocabulary goes on with it",
                hint="leave out response_format or tool_choice, or use another model",
            )
        if self._params.temperature <= 0.0:
            return allowed[0]
        values = logits[torch.tensor(allowed, device=logits.device)].double().cpu().numpy()
        count = _kept(values, self._params.top_p, self._params.min_p)
        chances = _softmax(values[:count] / self._params.temperature)
        place = int(np.searchsorted(np.cumsum(chances), self._chance.random(), "right"))
        return allowed[min(place, count - 1)]

    def _adjusted(self, logits: torch.Tensor) -> torch.Tensor:
        for token, bias in self._params.logit_bias:
            logits[token] += bias
        if self._penalized and self._recent:
            counts = Counter(self._recent)
            ids = torch.tensor(list(counts), device=logits.device)
            times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
            found, repeat = logits[ids], self._params.repeat_penalty
            found = torch.where(found > 0, found / repeat, found * repeat)
            logits[ids] = found - times * self._params.frequency_penalty - self._params.presence_penalty
        return logits


def _kept(values: Doubles, top_p: float, min_p: float) -> int:
    """Return how many of the descending logits stay: at least one."""
    count = len(values)
    if top_p < 1.0:
        count = int(np.searchsorted(np.cumsum(_softmax(values)), top_p, "left")) + 1
    if min_p > 0.0:
        count = min(count, int(np.count_nonzero(values >= values[0] + math.log(min_p))))
    return max(1, min(count, len(values)))


def _softmax(values: Doubles) -> Doubles:
    weights = np.exp(values - values[0])
    return np.asarray(weights / weights.sum(), np.float64)
