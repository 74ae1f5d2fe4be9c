"""Why a prompt could not reuse more."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from akashic_daemon.cache.explain import Before, explain_miss, fates
from akashic_daemon.program.align import Edit, Trace, entries_of
from akashic_daemon.program.path import Drop, Path, PlacedOp, Repos
from akashic_daemon.program.route import Route
from akashic_daemon.protocol.native import Miss


def text(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def route(words: str, ops: Sequence[PlacedOp] = ()) -> Route:
    """One token a character; every ten characters are a message."""
    owners = array("i", [i // 10 for i in range(len(words))])
    return Route.of("program" if ops else "plain", Path(array("i", map(ord, words)), tuple(ops)), owners)


def explain(
    prompt: str,
    reused: int,
    earlier: str | None,
    *,
    window_moved: bool = False,
    edits: Sequence[Edit] = (),
    editable: int | None = None,
    changed: str | None = None,
) -> Miss | None:
    before = None
    if earlier is not None:
        path = Path(array("i", map(ord, earlier)))
        trace = Trace(path, entries_of(path, array("i", [0] * len(earlier))), open_tail=False)
        before = Before(trace, edits, editable, changed=changed)
    return explain_miss(
        route(prompt), reused, before, prompt_tokens=len(prompt), window_moved=window_moved, to_text=text
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


def test_another_model_is_the_cause_until_this_one_has_computed_as_much() -> None:
    miss = explain("question answer. more", 0, "question answer.", changed="model a -> b")
    assert miss is not None
    assert (miss.cause, miss.at_token, miss.could_reuse, miss.detail) == ("model_changed", 0, 15, "model a -> b")
    assert explain("question answer. more", 15, "question answer.", changed="model a -> b") is None


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
    earlier = Path(array("i", [1, 4, 5, 1]))
    miss = explain_miss(
        Route.of("plain", Path(array("i", [1, 2, 3, 5, 1])), array("i", [0] * 5)),
        1,
        Before(Trace(earlier, entries_of(earlier, array("i", [0] * 4)), open_tail=False)),
        prompt_tokens=5,
        window_moved=False,
        to_text=lambda ids: "".join(words[i] for i in ids),
    )
    assert miss is not None
    assert miss.cause == "tokenization_differs"


def test_a_removed_message_is_named_as_the_cause_with_what_editing_would_have_saved() -> None:
    removed = [Edit("removed", 1, None)]
    miss = explain("question  more text", 10, "question  old answer  more text", edits=removed, editable=4)
    assert miss is not None
    assert (miss.cause, miss.at_token, miss.could_reuse) == ("message_removed", 10, 15)


def test_other_operations_than_before_are_the_cause_where_they_first_differ() -> None:
    path = Path(array("i", map(ord, "question  old answer  more")))
    before = Before(Trace(path, entries_of(path, array("i", [0] * len(path))), open_tail=False))
    dropped = route("question  old answer  more", [PlacedOp(20, Drop(((10, 20),)))])
    miss = explain_miss(dropped, 20, before, prompt_tokens=26, window_moved=False, to_text=text)
    assert miss is not None
    assert (miss.cause, miss.at_token) == ("program_differs", 20)


def test_the_fate_of_each_message_adds_up_to_its_tokens() -> None:
    words = "a" * 10 + "b" * 10 + "c" * 10 + "d" * 10
    taken = route(words, [PlacedOp(30, Drop(((10, 20),))), PlacedOp(30, Repos())])
    told = fates(taken, [(30, 40)])
    assert [(f.message, f.reused, f.moved, f.dropped, f.computed) for f in told] == [
        (0, 10, 0, 0, 0),
        (1, 0, 0, 10, 0),
        (2, 0, 10, 0, 0),
        (3, 0, 0, 0, 10),
    ]
    assert all(f.tokens == f.reused + f.moved + f.dropped + f.computed for f in told)


def test_another_answer_than_the_generated_one_is_told_from_other_text() -> None:
    earlier = Path(array("i", map(ord, "question  generated")))
    trace = Trace(earlier, entries_of(earlier, array("i", [0] * 10 + [1] * 9)), open_tail=True)
    miss = explain_miss(
        route("question  recorded, more"), 10, Before(trace), prompt_tokens=24, window_moved=False, to_text=text
    )
    assert miss is not None
    assert (miss.cause, miss.at_token) == ("answer_differs", 10)
