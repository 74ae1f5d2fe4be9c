"""Sampling by llama.cpp's own chain: no logits are copied into Python."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import BadRequest


class LlamaSampler:
    """One request's sampler chain. Neutral steps are left out, so greedy costs one pass over the logits."""

    def __init__(self, context: Any, vocabulary: Any, params: SamplingParams, row_of: Callable[[int], int]) -> None:
        self._context = context
        self._row_of = row_of
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        try:
            for step in _steps(vocabulary, params):
                llama_cpp.llama_sampler_chain_add(self._chain, step)
        except BaseException:
            self.close()
            raise

    def sample(self, item: int) -> int:
        """Choose a token from the logits of batch item `item` of the last decode, and remember it."""
        return int(llama_cpp.llama_sampler_sample(self._chain, self._context, self._row_of(item)))

    def accept(self, tokens: Sequence[int]) -> None:
        """Let penalties know of `tokens` that were not sampled here."""
        for token in tokens:
            llama_cpp.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the chain. Calling it twice does nothing."""
        if self._chain is not None:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = None


def _steps(vocabulary: Any, params: SamplingParams) -> list[Any]:
    vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    steps: list[Any] = []
    if params.logit_bias:
        bad = [t for t, _ in params.logit_bias if not 0 <= t < vocabulary_size]
        if bad:
            raise BadRequest(f"logit_bias names token {bad[0]}, but the vocabulary has {vocabulary_size} tokens")
        biases = (llama_cpp.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
        steps.append(llama_cpp.llama_sampler_init_logit_bias(vocabulary_size, len(biases), biases))
    if params.grammar is not None:
        grammar = llama_cpp.llama_sampler_init_grammar(vocabulary, params.grammar.encode(), b"root")
        if not grammar:
            raise BadRequest("the grammar can't be parsed", hint="check its GBNF; the start rule is named root")
        steps.append(grammar)
    if params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        steps.append(
            llama_cpp.llama_sampler_init_penalties(
                vocabulary_size,
                params.penalty_last_tokens,
                params.repeat_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            )
        )
    if params.temperature <= 0.0:
        return [*steps, llama_cpp.llama_sampler_init_greedy()]
    if params.top_k > 0:
        steps.append(llama_cpp.llama_sampler_init_top_k(params.top_k))
    if params.top_p < 1.0:
        steps.append(llama_cpp.llama_sampler_init_top_p(params.top_p, 1))
    if params.min_p > 0.0:
        steps.append(llama_cpp.llama_sampler_init_min_p(params.min_p, 1))
    if params.temperature != 1.0:
        steps.append(llama_cpp.llama_sampler_init_temp(params.temperature))
    seed = secrets.randbits(32) if params.seed is None else params.seed & 0xFFFFFFFF
    return [*steps, llama_cpp.llama_sampler_init_dist(ctypes.c_uint32(seed).value)]
