"""Cache programs beside memory: they mean the messages that were sent, and no prefix changes by either (invariant 8)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.memory.recalled import OPENING
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from fake_service import NEVER, answer, running_service
from memory_service import fill, one_embedder, routes, visible

NO_TIERS = {"cache.ram_bytes": 0, "cache.ssd_bytes": 0}
QUESTIONS = (
    "What does the parrot eat?",
    "When is rent due, on Monday?",
    "Is there a flat tyre at my bicycle?",
    "Thanks!",
    "Where is the meeting with Joanna?",
)
kinds = st.sampled_from(
    ["none", "oldest", "number", "numbers", "slice", "answers", "before", "repos", "replace", "memory"]
)
steps = st.lists(st.tuples(st.sampled_from(QUESTIONS), kinds), min_size=2, max_size=5)
rules = st.sampled_from([None, {"role": "user", "keep_last": 2}, {"role": "assistant", "keep_last": 1}])


def operation(kind: str, count: int) -> Mapping[str, Any] | None:
    """Return an operation on a history of `count` messages, its place named, so that it may be sent again and again."""
    if count < 4 and kind != "repos":
        return None
    at: dict[str, Any] = {"at": count}
    found: dict[str, dict[str, Any]] = {
        "oldest": {"op": "drop", "messages": [1], **at},
        "number": {"op": "drop", "select": f"message {count - 3}", **at},
        "numbers": {"op": "drop", "messages": [count - 2], "at": count - 1},
        "slice": {"op": "drop", "select": "user[:-1]", **at},
        "answers": {"op": "drop", "select": "assistant older than 1 turns", **at},
        "before": {"op": "drop", "select": "user[0]", "at": count - 1},
        "memory": {"op": "drop", "select": "memory[:-1]", **at},
        "repos": {"op": "repos", **at},
        "replace": {"op": "replace", "message": 2, "content": "[omitted]", **at},
    }
    return found.get(kind)


def without_recalled(messages: list[bytes]) -> list[bytes]:
    """Leave out what was recalled and the word after it."""
    out: list[bytes] = []
    for message in messages:
        if out and out[-1] is TAKEN:
            out.pop()  # the word that answers a recalled message
        else:
            out.append(message)
        if OPENING.encode() in message:
            out[-1] = TAKEN
    return out


TAKEN = b"recalled"


async def run(home: Path, steps: list[tuple[str, str]], rule: Mapping[str, Any] | None) -> list[int]:
    """Hold one conversation, and beside it the same one without memory; return how much was recalled each time."""
    history: list[Message] = [Message(Role.SYSTEM, "You are brief.")]
    ops: list[Mapping[str, Any]] = []
    recalled = []
    before: tuple[list[int], int] = ([], 0)

    async def one(service: Service, question: str, kind: str) -> None:
        nonlocal before
        history.append(Message(Role.USER, question))
        op = operation(kind, len(history)) if rule is None else None
        if kind == "replace" and any(earlier["op"] != "repos" for earlier in ops):
            op = None  # it may be gone: nothing would have a place to give
        request = GenerationInput(
            messages=tuple(history), max_tokens=6, edit_reuse="drop", memory=True, session="s",
            cache_ops=(*ops, op) if op else tuple(ops), drop_rule=rule,
        )  # fmt: skip
        if op:
            ops.append(op)
        with routes() as seen:
            done = await answer(service, request)
            await answer(service, GenerationInput(**{**fields(request), "memory": False, "session": "plain"}))
        mine, plain = seen
        tokens = list(mine.path.tokens)
        assert tokens[: len(before[0])] == before[0]
        earlier = [o for o in mine.path.ops if o.offset < len(before[0])]
        assert len(earlier) == before[1]
        before = (tokens, len(mine.path.ops))
        assert without_recalled(visible(mine)) == visible(plain)
        recalled.append(sum(OPENING.encode() in m for m in visible(mine)))
        history.append(Message(Role.ASSISTANT, done.text))

    def engine(_name: str, _path: Path) -> FakeEngine:
        return FakeEngine(kv_cells=65_536, window_tokens=16_384, end_every=NEVER)

    async with running_service(home, engine, flags=NO_TIERS) as service:
        await fill(service)
        for question, kind in steps:
            await one(service, question, kind)
    return recalled


def fields(request: GenerationInput) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}


@settings(max_examples=10, deadline=None)
@given(steps=steps, rule=rules)
def test_programs_mean_what_was_sent_and_every_path_goes_on_from_the_one_before(
    steps: list[tuple[str, str]], rule: Mapping[str, Any] | None
) -> None:
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, one_embedder():
        asyncio.run(run(Path(folder), steps, rule))


def test_what_was_recalled_stays_visible_beside_a_rule_that_drops_users_and_answers() -> None:
    asked = [(QUESTIONS[number], "none") for number in (0, 2, 4, 3)]
    counts = []
    for rule in (None, {"role": "user", "keep_last": 2}, {"role": "assistant", "keep_last": 1}):
        with tempfile.TemporaryDirectory(prefix="ak-") as folder, one_embedder():
            counts.append(asyncio.run(run(Path(folder), asked, rule)))
    assert counts == [[1, 2, 3, 3]] * 3


def test_what_was_recalled_leaves_when_it_is_meant() -> None:
    asked = [(QUESTIONS[number], "memory" if number == 4 else "none") for number in (0, 2, 4, 3)]
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, one_embedder():
        counts = asyncio.run(run(Path(folder), asked, None))
    assert counts == [1, 2, 1, 1]
