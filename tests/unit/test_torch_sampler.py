"""The torch engine's sampler means by its steps what llama.cpp's chain means."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from akashic_daemon.engine.base import BatchItem, SamplingParams
from akashic_daemon.engine.torch_engine.last_logits import LastLogits
from akashic_daemon.engine.torch_engine.sampler import TorchSampler
from akashic_daemon.errors import BadRequest, EngineError
from akashic_daemon.toolcalls.trigger import Trigger
from akashic_daemon.types import SequenceId

LOGITS = [2.0, 1.0, 0.5, 3.0, -1.0, 2.5, 0.0, -4.0]
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5}


PIECES = [b"a", b"b", b"ab", b"c", b"\xc3", b"\xa9", b"", b"<go>"]
VOCABULARY: dict[str, Any] = {"piece": PIECES.__getitem__, "is_end": lambda token: token == 6}


def sampler(*, vocabulary_size: int = 8, **params: Any) -> TorchSampler:
    values = torch.tensor([[0.0] * 8, LOGITS])
    items = [BatchItem(SequenceId(n), [1], 0, logits=True) for n in range(2)]
    return TorchSampler(
        SamplingParams(**(NEUTRAL | params)), vocabulary_size, lambda: LastLogits(items, values), **VOCABULARY
    )


def chances(count: int = 4000, **params: Any) -> dict[int, float]:
    made = sampler(**params)
    found = Counter(made.sample(1) for _ in range(count))
    return {token: times / count for token, times in found.items()}


def expected(logits: dict[int, float]) -> dict[int, float]:
    total = sum(map(math.exp, logits.values()))
    return {token: math.exp(value) / total for token, value in logits.items()}


def check(found: dict[int, float], wanted: dict[int, float], count: int = 4000) -> None:
    """Each frequency within five standard deviations of its chance; nothing else was drawn."""
    assert set(found) <= set(wanted)
    for token, chance in wanted.items():
        assert abs(found.get(token, 0.0) - chance) <= 5 * math.sqrt(chance * (1 - chance) / count) + 1e-12


def test_neutral_steps_leave_the_models_own_chances() -> None:
    check(chances(), expected(dict(enumerate(LOGITS))))


def test_temperature_divides_logits() -> None:
    check(chances(temperature=0.5), expected({n: 2 * x for n, x in enumerate(LOGITS)}))


def test_top_k_keeps_the_greatest() -> None:
    check(chances(top_k=3), expected({3: 3.0, 5: 2.5, 0: 2.0}))


def test_top_p_keeps_the_fewest_that_reach_it_before_temperature() -> None:
    """Chances 0.41, 0.25, 0.15, …: three reach 0.75, whatever the temperature."""
    own = expected(dict(enumerate(LOGITS)))
    assert own[3] + own[5] < 0.75 < own[3] + own[5] + own[0]
    check(chances(top_p=0.75, temperature=2.0), expected({3: 1.5, 5: 1.25, 0: 1.0}))


def test_min_p_is_relative_to_the_best() -> None:
    kept = {n: x for n, x in enumerate(LOGITS) if math.exp(x - 3.0) >= 0.3}
    assert len(kept) == 3
    check(chances(min_p=0.3), expected(kept))


def test_bias_comes_before_all_else() -> None:
    assert sampler(temperature=0.0, logit_bias=((7, 100.0),)).sample(1) == 7
    check(chances(top_k=2, logit_bias=((4, 3.75),)), expected({3: 3.0, 4: 2.75}))


def test_penalties_count_what_was_said_lately() -> None:
    greedy = sampler(temperature=0.0, repeat_penalty=2.0, penalty_last_tokens=2)
    assert [greedy.sample(1) for _ in range(4)] == [3, 5, 0, 3]
    presence = sampler(temperature=0.0, presence_penalty=1.2)
    presence.accept([3, 3, 3])
    assert presence.sample(1) == 5
    frequency = sampler(temperature=0.0, frequency_penalty=0.1)
    frequency.accept([3] * 4)
    assert frequency.sample(1) == 3
    frequency.accept([3])
    assert frequency.sample(1) == 5


def test_a_repeated_token_with_a_negative_logit_gets_smaller() -> None:
    """Divided when positive, multiplied when negative: 4's -1 becomes -2, below 6's 0 either way."""
    made = sampler(repeat_penalty=2.0, logit_bias=tuple((n, -50.0) for n in (0, 1, 2, 3, 5, 7)))
    made.accept([4, 6])
    found: Counter[int] = Counter()
    for _ in range(2000):
        found[made._choose(made._last(), 1)] += 1
    check({t: n / 2000 for t, n in found.items()}, expected({4: -2.0, 6: 0.0}), 2000)


def test_a_seed_gives_the_same_text_again_and_none_gives_others() -> None:
    def text(seed: int | None) -> list[int]:
        made = sampler(seed=seed)
        return [made.sample(1) for _ in range(40)]

    assert text(7) == text(7)
    assert text(7) != text(8)
    assert text(None) != text(None)


def test_temperature_zero_takes_the_best_of_each_item() -> None:
    assert sampler(temperature=0.0).sample(1) == 3
    assert sampler(temperature=0.0).sample(0) == 0


def test_what_cant_be_used_is_refused() -> None:
    with pytest.raises(BadRequest, match="token 8"):
        sampler(logit_bias=((8, 1.0),))
    for broken in ('root ::= "a', "root ::= other", 'root ::= root "a"', "start ::= [a]"):
        with pytest.raises(BadRequest, match="grammar"):
            sampler(grammar=broken)


def said(grammar: str, **params: Any) -> list[int]:
    """Return the tokens of an answer up to its end."""
    made = sampler(grammar=grammar, **params)
    out: list[int] = []
    while not out or (out[-1] != 6 and len(out) < 50):
        out.append(made.sample(1))
    return out


def test_a_grammar_is_held_to_also_through_halves_of_characters() -> None:
    assert said('root ::= "abé"', temperature=0.0) in ([0, 1, 4, 5, 6], [2, 4, 5, 6])
    for seed in range(20):
        assert said("root ::= [b] [bc]{2}", seed=seed)[-1] == 6
        assert set(said("root ::= [b] [bc]{2}", seed=seed)) <= {1, 3, 6}


def test_of_the_allowed_tokens_each_has_the_chance_that_it_has_among_them() -> None:
    found = Counter(sampler(grammar="root ::= [ab]", seed=seed).sample(1) for seed in range(400))
    both = expected({0: LOGITS[0], 1: LOGITS[1]})
    assert abs(found[0] / 400 - both[0]) < 0.1
    assert set(found) == {0, 1}


def test_a_grammar_waits_for_its_trigger() -> None:
    answer = said('root ::= "<go>" "bb"', triggers=(Trigger("<go>"),), logit_bias=((7, 6.5),), seed=1)
    assert answer[answer.index(7) :] == [7, 1, 1, 6]


def test_a_form_that_no_token_meets_is_an_error() -> None:
    with pytest.raises(EngineError, match="no token"):
        sampler(grammar='root ::= "z"').sample(1)


def test_an_item_without_logits_cant_be_sampled() -> None:
    last = LastLogits([BatchItem(SequenceId(0), [1, 2], 0, logits=False)], torch.zeros(0, 8))
    made = TorchSampler(SamplingParams(temperature=0), 8, lambda: last, **VOCABULARY)
    with pytest.raises(EngineError, match="didn't ask"):
        made.sample(0)
    assert last.copied(0).shape == (0, 8)
    assert np.array_equal(
        LastLogits([BatchItem(SequenceId(0), [1, 2], 0, True, True)], torch.ones(2, 8)).copied(0), np.ones((2, 8))
    )
