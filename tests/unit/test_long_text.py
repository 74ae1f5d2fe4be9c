"""A text that can't fit is refused from the tokens of its beginning; one that may fit is counted to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import PromptTooLong
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.trajectory.prompt import tokens_at_least
from fake_service import answer, running_service

WINDOW = 512


def greedy(longest: int) -> Callable[[str], list[int]]:
    """Return a tokenizer that takes the longest run of one letter up to so many."""

    def tokenize(text: str) -> list[int]:
        out, at = [], 0
        while at < len(text):
            end = at
            while end < len(text) and end - at < longest and text[end] == text[at]:
                end += 1
            out.append(at)
            at = end
        return out

    return tokenize


@given(st.integers(1, 64), st.integers(0, 2**32), st.integers(1, 400))
@settings(deadline=None, max_examples=30)
def test_a_bound_is_never_above_the_count_nor_below_the_limit(longest: int, seed: int, limit: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choice("ab") * chance.randrange(1, 200) for _ in range(chance.randrange(200)))
    count = tokens_at_least(greedy(longest), text, limit)
    assert count is None or limit <= count <= len(greedy(longest)(text))


class CountingEngine(FakeEngine):
    """Knows how much it has cut into tokens."""

    chars = 0

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        self.chars += len(text)
        return super().tokenize(text, special=special)


@pytest.mark.parametrize(("chars", "words"), [(2_000_000, "at least"), (WINDOW + 1, f"has {WINDOW + 1} tokens")])
def test_a_text_over_the_window_is_refused_with_what_is_known_of_its_count(home: Path, chars: int, words: str) -> None:
    engine = CountingEngine(kv_cells=1 << 12, window_tokens=WINDOW)

    async def check() -> None:
        async with running_service(home, lambda _name, _path: engine) as service:
            with pytest.raises(PromptTooLong, match=words) as refused:
                await answer(service, GenerationInput(text="x" * chars, max_tokens=1))
            assert WINDOW < refused.value.details["n_prompt_tokens"] <= chars
            assert refused.value.details["n_ctx"] == WINDOW
            assert (await answer(service, GenerationInput(text="x" * 40, max_tokens=1))).prompt_tokens == 40

    asyncio.run(check())
    assert engine.chars < 40 * WINDOW
