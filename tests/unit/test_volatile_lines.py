"""Lines that change with each request are taken out of system messages, and of nothing else."""

from __future__ import annotations

import pytest

from akashic_daemon.config import CacheSection
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.trajectory.volatile import VolatileLines

KNOWN = CacheSection().volatile_lines
BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={};"


def system(text: str) -> Message:
    return Message(Role.SYSTEM, text)


USER = Message(Role.USER, "hi")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (BILLING + "\nYou are", "You are"),
        ("You are\n" + BILLING, "You are"),
        ("You\r\n" + BILLING + "\r\n  are\n\n", "You\r\n  are\n\n"),
        ("see " + BILLING, "see " + BILLING),
        ("plain", "plain"),
    ],
)
def test_the_line_goes_and_every_other_byte_stays(text: str, left: str) -> None:
    for nonce in ("36ee5", "0aaa9"):
        messages, removed = VolatileLines(KNOWN).without([system(text.format(nonce)), USER])
        assert messages == (system(left.format(nonce)), USER)
        assert removed == (text != left)


def test_only_system_messages_are_looked_at_wherever_they_stand() -> None:
    said = [Message(Role.USER, BILLING), Message(Role.TOOL, BILLING, tool_call_id="t"), system("a\n" + BILLING)]
    messages, removed = VolatileLines(KNOWN).without(said)
    assert messages == (*said[:2], system("a"))
    assert removed == 1


def test_a_system_message_of_nothing_else_goes_unless_it_is_all_there_is() -> None:
    assert VolatileLines(KNOWN).without([system(BILLING), USER]) == ((USER,), 1)
    assert VolatileLines(KNOWN).without([system(BILLING)]) == ((system(""),), 1)


def test_an_empty_pattern_removes_nothing_and_another_one_only_what_it_says() -> None:
    said = (system(BILLING + "\nDate: today\nx"), USER)
    assert VolatileLines("").without(said) == (said, 0)
    assert VolatileLines("Date: |Time: ").without(said) == ((system(BILLING + "\nx"), USER), 1)
