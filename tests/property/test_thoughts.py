"""What is thought and what is said, however an answer is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from akashic_daemon.schedule.answer import Answer
from akashic_daemon.schedule.events import TextDelta, ThinkingDelta
from akashic_daemon.toolcalls.form import Thinking
from akashic_daemon.toolcalls.thoughts import ThoughtReader, parted

answers = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", " ", "<", "</", "think>", "a", "b c", "é"]), max_size=8
).map("".join)


@given(answers, st.sampled_from(["may", "must", "none"]), st.lists(st.integers(0, 40), max_size=6))
@example("<think>\n\n</think>\n\nyes", "may", [9])
@settings(deadline=None)
def test_pieces_say_what_the_whole_says(answer: str, thinking: Thinking, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(answer)) for cut in cuts} | {len(answer)})
    reader = ThoughtReader(thinking)
    thought = said = ""
    for start, end in zip([0, *ends], ends, strict=False):
        more_thought, more_said = reader.push(answer[start:end])
        thought, said = thought + more_thought, said + more_said
    more_thought, more_said = reader.finish()
    assert parted(answer, thinking) == ((thought + more_thought) or None, said + more_said)
    assert reader.thought == ((thought + more_thought) or None)


@given(answers)
def test_nothing_but_marks_and_line_breaks_around_them_is_lost(answer: str) -> None:
    thought, said = parted(f"<think>{answer}</think>x{answer}", "may")
    inner, closing, rest = answer.partition("</think>")
    if not closing:
        assert (thought or "") == inner.strip("\n")
        assert said == f"x{answer}"
    else:
        assert (thought or "") == inner.strip("\n")
        assert said == f"{rest}</think>x{answer}".lstrip("\n")


@pytest.mark.parametrize(
    ("answer", "thinking", "expected"),
    [
        ("<think>\nhm\n</think>\n\nyes", "may", ("hm", "yes")),
        ("hm\n</think>\n\nyes", "must", ("hm", "yes")),
        ("hm", "must", ("hm", "")),
        ("yes <think>no</think>", "may", (None, "yes <think>no</think>")),
        ("<think>\n\n</think>\n\nyes", "may", (None, "yes")),
        ("<thin", "may", (None, "<thin")),
        ("<think>a</think>b", "none", (None, "<think>a</think>b")),
        ("<think>a\n\nb</thinx", "may", ("a\n\nb</thinx", "")),
    ],
)
def test_what_answers_think_and_say(answer: str, thinking: Thinking, expected: tuple[str | None, str]) -> None:
    assert parted(answer, thinking) == expected


def test_tokens_of_thoughts_are_counted_and_stop_strings_end_only_what_is_said() -> None:
    answer = Answer(["STOP"], marks={900: b"</think>"}, thinking="must")
    pieces = [(1, b"hm"), (1, b" STOP"), (900, b""), (1, b"\n"), (1, b"so"), (1, b"STOP"), (1, b"more")]
    events = [e for n, (token, piece) in enumerate(pieces, 1) for e in answer.push(token, piece, n)]
    assert "".join(e.text for e in events if isinstance(e, ThinkingDelta)) == "hm STOP"
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "so"
    assert (answer.thinking, answer.text, answer.stop_string) == ("hm STOP", "so", "STOP")
    assert answer.thinking_tokens in (2, 3)
