"""Dense text without what stands elsewhere: runs of lines seen before, files read again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.memory.repeats import FileRead, LineIndex, superseded

_FILE = "\n".join(f"def step_{n}(self) -> int:  # {n * n}" for n in range(40))
_REFERENCE = re.compile(r"\[(\d+) lines as in turn (\d+), from line (\d+)\]")


def _trim(texts: Sequence[str]) -> list[str]:
    index = LineIndex()
    return [index.trim(turn, text) for turn, text in enumerate(texts)]


def _whole(trimmed: Sequence[str], raw: Sequence[str]) -> list[str]:
    """Put each text together again from its references."""
    whole = []
    for part in trimmed:
        lines: list[str] = []
        for line in part.split("\n"):
            if match := _REFERENCE.fullmatch(line):
                count, turn, first = map(int, match.groups())
                lines += raw[turn].split("\n")[first - 1 : first - 1 + count]
            else:
                lines.append(line)
        whole.append("\n".join(lines))
    return whole


def test_a_text_seen_before_is_one_reference() -> None:
    first, again = _trim([_FILE, _FILE])
    assert first == _FILE
    assert again == "[40 lines as in turn 0, from line 1]"


def test_a_changed_line_stays_and_what_is_around_it_is_referred_to() -> None:
    changed = _FILE.replace("step_20(self)", "step_20(self, count)")
    _, again = _trim([_FILE, changed])
    assert again.split("\n") == [
        "[20 lines as in turn 0, from line 1]",
        "def step_20(self, count) -> int:  # 400",
        "[19 lines as in turn 0, from line 22]",
    ]


def test_short_runs_such_as_closing_brackets_stay() -> None:
    texts = ["a();\n}\n}\n}\n", "b();\n}\n}\n}\n"]
    assert _trim(texts) == texts


def test_one_long_line_seen_before_is_referred_to() -> None:
    line = "x" * 400
    assert _trim([f"a\n{line}\nb", f"c\n{line}\nd"])[1] == "c\n[1 lines as in turn 0, from line 2]\nd"


@given(
    st.lists(
        st.lists(st.sampled_from([*(f"line {n} " + "x" * 30 for n in range(6)), "}", ""]), max_size=12).map("\n".join),
        max_size=5,
    )
)
def test_nothing_is_lost_that_a_reference_does_not_give_back(texts: list[str]) -> None:
    assert _whole(_trim(texts), texts) == texts


def test_a_file_read_again_supersedes_the_earlier_read() -> None:
    reads = [FileRead(3, "a.py"), FileRead(5, "b.py"), FileRead(9, "a.py"), FileRead(12, "a.py")]
    assert superseded(reads) == {3: 12, 9: 12}


def test_a_read_of_other_lines_supersedes_nothing() -> None:
    reads = [FileRead(1, "a.py", 1, 50), FileRead(2, "a.py", 40, 90), FileRead(3, "a.py", 45, 60), FileRead(4, "a.py")]
    assert superseded(reads[:3]) == {}
    assert superseded(reads) == {1: 4, 2: 4, 3: 4}
    assert superseded([FileRead(1, "a.py", 10, 20), FileRead(2, "a.py", 5, 20)]) == {1: 2}
    assert superseded([FileRead(1, "a.py", 10), FileRead(2, "a.py", 5, 20)]) == {}


def test_a_turn_that_shows_two_files_stays_while_one_is_wanted() -> None:
    assert superseded([FileRead(1, "a.py"), FileRead(1, "b.py"), FileRead(2, "a.py")]) == {}
