"""Why a prompt could not reuse more."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from akashic_daemon.cache.explain import explain_miss
from akashic_daemon.protocol.native import Miss


def explain(prompt: str, reused: int, earlier: str | None, *, window_moved: bool = False) -> Miss | None:
    """Explain with one token a character; every ten characters are a message."""

    def to_text(tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    return explain_miss(
        array("i", map(ord, prompt)),
        reused,
        None if earlier is None else array("i", map(ord, earlier)),
        message_at=[i // 10 for i in range(len(prompt))],
        window_moved=window_moved,
        to_text=to_text,
    )


def test_a_prompt_that_only_grew_needs_no_explanation() -> None:
    assert explain("question answer. more", 16, "question answer.") is None


def test_the_last_sampled_token_was_never_computed_and_is_no_miss() -> None:
    assert explain("question answer. more", 15, "question answer.") is None


def test_the_same_prompt_again_needs_no_explanation() -> None:
    assert explain("question", 7, "question answer") is None


def test_a_first_request_is_cold() -> None:
    miss = explain("question", 0, None)
    assert miss is not None
    assert (miss.cause, miss.at_token) == ("cold", 0)


def test_a_new_session_on_a_known_prefix_says_so() -> None:
    miss = explain("a system prompt, new question", 15, None)
    assert miss is not None
    assert (miss.cause, miss.at_token, miss.at_message) == ("new_session", 15, 1)


def test_an_evicted_prefix_tells_how_much_would_have_been_reused() -> None:
    miss = explain("question answer. more", 4, "question answer.")
    assert miss is not None
    assert miss.cause == "evicted"
    assert miss.at_token == 4
    assert miss.could_reuse == 15


def test_changed_text_is_quoted_with_its_message() -> None:
    miss = explain("the time is 12:31 now, what next", 16, "the time is 12:30 now, what next")
    assert miss is not None
    assert miss.at_token == 16
    assert miss.at_message == 1
    assert miss.cause == "text_differs"
    assert miss.expected == "0 now, what "
    assert miss.got == "1 now, what "


def test_a_moved_window_is_named_as_the_cause() -> None:
    miss = explain("system newer turns", 7, "system older turns", window_moved=True)
    assert miss is not None
    assert miss.cause == "window_moved"


def test_other_tokens_of_the_same_text_are_told_from_other_text() -> None:
    words = {1: "some ", 2: "more", 3: " ", 4: "more ", 5: "words and words"}
    miss = explain_miss(
        array("i", [1, 2, 3, 5, 1]),
        1,
        array("i", [1, 4, 5, 1]),
        message_at=[0] * 5,
        window_moved=False,
        to_text=lambda ids: "".join(words[i] for i in ids),
    )
    assert miss is not None
    assert miss.cause == "tokenization_differs"
