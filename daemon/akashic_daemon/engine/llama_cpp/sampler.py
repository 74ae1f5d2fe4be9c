"""Sampling by llama.cpp's own chain. Logits are copied only for an answer that is held to a grammar."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np

from akashic_daemon.engine.base import FloatArray, SamplingParams
from akashic_daemon.engine.llama_cpp.vocabulary import piece_of
from akashic_daemon.errors import BadRequest, EngineError
from akashic_daemon.toolcalls.matcher import grammar_of
from akashic_daemon.toolcalls.trigger import GrammarTrigger

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaSampler:
    """One request's sampler chain. Neutral steps are left out, so greedy costs one pass over the logits."""

    def __init__(self, context: Any, vocabulary: Any, params: SamplingParams, row_of: Callable[[int], int]) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._row_of = row_of
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        self._penalties: Any = None
        self._grammar: Any = None
        """llama.cpp's sampler of the grammar, once it has set in."""
        self._trigger = GrammarTrigger(params.triggers) if params.grammar is not None and params.triggers else None
        self._grammar_text = params.grammar or ""
        try:
            for step in _steps(vocabulary, params):
                llama_cpp.llama_sampler_chain_add(self._chain, step)
            if params.grammar is not None:
                self._grammar = _grammar(vocabulary, params.grammar)  # a broken one is refused at once
        except BaseException:
            self.close()
            raise
        if self._trigger is not None:
            llama_cpp.llama_sampler_free(self._grammar)
            self._grammar = None
        if _penalises(params):
            self._penalties = llama_cpp.llama_sampler_chain_get(self._chain, int(bool(params.logit_bias)))

    def sample(self, item: int) -> int:
        """Choose a token from the logits of batch item `item` of the last decode, and remember it."""
        if self._grammar is not None:
            return self._sample_held(self._row_of(item))
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
        if self._grammar is not None:
            llama_cpp.llama_sampler_free(self._grammar)
            self._grammar = None

    def _sample_held(self, row: int) -> int:
        """Choose a token that the grammar allows.

        The grammar is asked of the choice alone; going through the whole vocabulary costs more than computing a token
        does, so that is done only when it refuses.
        """
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        logits = np.ctypeslib.as_array(pointer, (llama_cpp.llama_vocab_n_tokens(self._vocabulary),))
        token = self._choose(_Candidates(logits))
        alone = _Candidates(logits[token : token + 1], first=token)
        llama_cpp.llama_sampler_apply(self._grammar, alone.array)
        if np.isneginf(alone.data["logit"][0]):
            allowed = _Candidates(logits)
            llama_cpp.llama_sampler_apply(self._grammar, allowed.array)
            if np.isneginf(allowed.data["logit"]).all():
                raise EngineError(
                    "answering in a given form: no token of the vocabulary goes on with it",
                    hint="leave out response_format or tool_choice, or use another model",
                )
            token = self._choose(allowed)
        llama_cpp.llama_sampler_accept(self._grammar, token)
        llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, candidates: _Candidates) -> int:
        llama_cpp.llama_sampler_apply(self._chain, candidates.array)
        return int(candidates.data["id"][candidates.array.selected])

    def _await(self, token: int) -> None:
        """Let the grammar set in when the answer has said one of its triggers."""
        assert self._trigger is not None
        said = self._trigger.push(token, piece_of(self._vocabulary, token, special=True))
        if said is None:
            return
        if not grammar_of(self._grammar_text).start().after(said.text).is_possible:
            # llama.cpp ends the process when its grammar is given what it refuses. This will be read as text.
            self._trigger.start_again()
            return
        self._grammar = _grammar(self._vocabulary, self._grammar_text, trigger=said.trigger)
        for known in said.tokens:
            llama_cpp.llama_sampler_accept(self._grammar, known)
        self._trigger = None


class _Candidates:
    """Tokens with their logits, as llama.cpp's samplers take them: they sort and cut them in place."""

    def __init__(self, logits: FloatArray, *, first: int = 0) -> None:
        self.data = np.empty(len(logits), _CANDIDATE)
        self.data["id"] = np.arange(first, first + len(logits), dtype=np.int32)
        self.data["logit"] = logits
        self.data["p"] = 0.0
        place = self.data.ctypes.data_as(llama_cpp.llama_token_data_p)
        self.array = llama_cpp.llama_token_data_array(place, len(logits), -1, False)


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
