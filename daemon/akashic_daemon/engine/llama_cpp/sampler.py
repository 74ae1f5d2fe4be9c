"""Sampling by llama.cpp's own chain: no logits are copied into Python."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.errors import BadRequest
from akashic_daemon.toolcalls.matcher import grammar_of
from akashic_daemon.toolcalls.trigger import GrammarTrigger


class LlamaSampler:
    """One request's sampler chain. Neutral steps are left out, so greedy costs one pass over the logits."""

    def __init__(self, context: Any, vocabulary: Any, params: SamplingParams, row_of: Callable[[int], int]) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._row_of = row_of
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self._penalties: Any = None
        self._trigger = GrammarTrigger(params.triggers) if params.grammar is not None and params.triggers else None
        self._grammar = params.grammar
        self._biases = bool(params.logit_bias)
        try:
            for step in _steps(vocabulary, params):
                llama_cpp.llama_sampler_chain_add(self._chain, step)
            if params.grammar is not None and self._trigger is None:
                self._set_grammar(_grammar(vocabulary, params.grammar))
            elif params.grammar is not None:
                llama_cpp.llama_sampler_free(_grammar(vocabulary, params.grammar))  # a broken one is refused at once
        except BaseException:
            self.close()
            raise
        if _penalises(params):
            place = int(self._biases) + int(self._grammar is not None and self._trigger is None)
            self._penalties = llama_cpp.llama_sampler_chain_get(self._chain, place)

    def sample(self, item: int) -> int:
        """Choose a token from the logits of batch item `item` of the last decode, and remember it."""
        token = int(llama_cpp.llama_sampler_sample(self._chain, self._context, self._row_of(item)))
        if self._trigger is not None:
            self._await(token)
        return token

    def accept(self, tokens: Sequence[int]) -> None:
        """Let penalties know of `tokens` that were not sampled here; a grammar holds for the answer alone."""
        if self._penalties is not None:
            for token in tokens:
                llama_cpp.llama_sampler_accept(self._penalties, token)

    def close(self) -> None:
        """Free the chain. Calling it twice does nothing."""
        if self._chain is not None:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = self._penalties = None

    def _await(self, token: int) -> None:
        """Let the grammar set in when the answer has said one of its triggers."""
        assert self._trigger is not None
        assert self._grammar is not None
        said = self._trigger.push(token, self._piece(token))
        if said is None:
            return
        if not grammar_of(self._grammar).start().after(said.text).is_possible:
            # llama.cpp ends the process when its grammar is given what it refuses. This will be read as text.
            self._trigger.start_again()
            return
        grammar = _grammar(self._vocabulary, self._grammar, trigger=said.trigger)
        for known in said.tokens:
            llama_cpp.llama_sampler_accept(grammar, known)
        self._trigger = None
        self._set_grammar(grammar)

    def _set_grammar(self, grammar: Any) -> None:
        """Put a grammar before the steps that choose; they keep their state."""
        after = []
        while llama_cpp.llama_sampler_chain_n(self._chain) > self._biases:
            after.append(llama_cpp.llama_sampler_chain_remove(self._chain, int(self._biases)))
        for step in (grammar, *after):
            llama_cpp.llama_sampler_chain_add(self._chain, step)

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(512)
        size = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, True)
        return buffer.raw[:size] if size > 0 else b""


def _grammar(vocabulary: Any, text: str, *, trigger: str | None = None) -> Any:
    """Return llama.cpp's sampler for a grammar; with `trigger` one that begins where that text is said."""
    if trigger is None:
        grammar = llama_cpp.llama_sampler_init_grammar(vocabulary, text.encode(), b"root")
    else:
        patterns = (ctypes.c_char_p * 1)(_as_pattern(trigger).encode())
        grammar = llama_cpp.llama_sampler_init_grammar_lazy_patterns(
            vocabulary, text.encode(), b"root", patterns, 1, None, 0
        )
    if not grammar:
        raise BadRequest("the grammar can't be parsed", hint="check its GBNF; the start rule is named root")
    return grammar


def _as_pattern(text: str) -> str:
    """Return a regular expression of C++ for exactly this text."""
    return "".join(
        char if char.isalnum() or ord(char) > 127 else f"[{char}]" if char not in "^\\]" else f"\\{char}"
        for char in text
    )


def _penalises(params: SamplingParams) -> bool:
    return params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def _steps(vocabulary: Any, params: SamplingParams) -> list[Any]:
    vocabulary_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    steps: list[Any] = []
    if params.logit_bias:
        bad = [t for t, _ in params.logit_bias if not 0 <= t < vocabulary_size]
        if bad:
            raise BadRequest(f"logit_bias names token {bad[0]}, but the vocabulary has {vocabulary_size} tokens")
        biases = (llama_cpp.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
        steps.append(llama_cpp.llama_sampler_init_logit_bias(vocabulary_size, len(biases), biases))
    if _penalises(params):
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
