"""Memory never changes a prefix (invariant 8): whatever is asked, each prompt goes on where the one before it ended.

Nor does what happens to memory meanwhile, and where a client edits its history, all before the edit stays as it was.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.memory.answers import Selector
from akashic_daemon.memory.recalled import OPENING
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from fake_service import NEVER, answer, running_service
from memory_service import FACTS, fill, one_embedder, prompts

NO_TIERS = {"cache.ram_bytes": 0, "cache.ssd_bytes": 0}
TAKEN = b"assistant\nNoted."
SYSTEM = Message(Role.SYSTEM, "You are brief.")
questions = st.sampled_from(
    [
        "What does the parrot eat?",
        "What does the parrot eat? 🦜",
        "When is rent due, on Monday?",
        "Is there a flat tyre at my bicycle?",
        "Thanks!",
        "Where is the meeting with Joanna?",
        "",
    ]
)
steps = st.lists(
    st.tuples(questions, st.booleans(), st.sampled_from(["ask", "again", "grow", "restart", "forget", "compact"])),
    min_size=2,
    max_size=4,
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["none", "change", "cut", "remove", "insert"]),
        st.integers(0, 30),
        questions,
        st.sampled_from(["ask", "forget", "compact", "restart"]),
    ),
    min_size=3,
    max_size=6,
)


async def run(home: Path, steps: list[tuple[str, bool, str]], *, system: bool, named: bool) -> None:
    """Hold one conversation, and beside it the same one without memory."""
    history: list[Message] = [SYSTEM] if system else []
    before = b""
    number = 0
    cold = True

    async def one(service: Service, question: str, goes_on: bool, kind: str) -> None:
        nonlocal before, number, cold
        number += 1
        await happens(service, kind, question, number)
        history.append(Message(Role.USER, question))
        messages = tuple(history)
        request = GenerationInput(messages=messages, max_tokens=6, session="s" if named else None, memory=True)
        with prompts() as seen:
            done = await answer(service, request)
            if kind == "again":
                again = await answer(service, request)
                assert seen[1] == seen[0]
                assert again.reuse.computed_tokens <= 1
                done = again
            plain = GenerationInput(messages=messages, max_tokens=6, session="plain", memory=False)
            await answer(service, plain)
        assert seen[0].startswith(before)
        assert cold or done.reuse.reused_tokens >= len(before) - 1
        cold = False
        assert without_recalled(seen[0]) == seen[-1]
        history.append(Message(Role.ASSISTANT, done.text))
        before = seen[0] + done.text.encode()
        if goes_on:
            history.append(Message(Role.USER, "go on"))
            request = replace(request, messages=tuple(history))
            with prompts() as seen:
                done = await answer(service, request)
            assert seen[0].startswith(before)
            history.append(Message(Role.ASSISTANT, done.text))
            before = seen[0] + done.text.encode()

    def engine(_name: str, _path: Path) -> FakeEngine:
        return FakeEngine(kv_cells=65_536, window_tokens=16_384, end_every=NEVER)

    waiting = list(steps)
    first = True
    while waiting:
        async with running_service(home, engine, flags=NO_TIERS) as service:
            cold = True
            if first:
                await fill(service)
                first = False
            while waiting:
                question, goes_on, kind = waiting.pop(0)
                await one(service, question, goes_on, kind)
                if kind == "restart":
                    break


async def happens(service: Service, kind: str, question: str, number: int) -> None:
    """Let something happen to memory during a chat."""
    if kind == "grow":
        await fill(service, [f"{fact} ({number})" for fact in FACTS], source=f"more-{number}")
    elif kind == "forget":
        await service.memory.forget(Selector(query=question or "parrot", limit=2), dry_run=False)
        service.chat_memory.forget()
    elif kind == "compact":
        await service.memory.seal("user")
        await service.memory.compact()


async def run_edited(home: Path, steps: list[tuple[str, int, str, str]], *, named: bool) -> None:
    """Hold a conversation whose client edits its history before it asks, and beside it the same one without memory."""
    history: list[Message] = [SYSTEM]
    before: list[bytes] = []

    async def one(service: Service, edit: str, place: int, question: str, kind: str, number: int) -> None:
        nonlocal before
        await happens(service, kind, question, number)
        first = edited(history, edit, place)
        history.append(Message(Role.USER, question))
        request = GenerationInput(
            messages=tuple(history), max_tokens=6, session="s" if named else None, memory=True, edit_reuse="exact"
        )
        with prompts() as seen:
            done = await answer(service, request)
            await answer(service, replace(request, memory=False, session="plain"))
        assert without_recalled(seen[0]) == seen[-1]
        now = messages_of(seen[0])
        assert len(own(before[: common(before, now)])) >= min(first, len(own(before)))
        history.append(Message(Role.ASSISTANT, done.text))
        before = [*now[:-1], now[-1] + done.text.encode()]

    def engine(_name: str, _path: Path) -> FakeEngine:
        return FakeEngine(kv_cells=65_536, window_tokens=16_384, end_every=NEVER)

    waiting = list(enumerate(steps))
    while waiting:
        async with running_service(home, engine, flags=NO_TIERS) as service:
            if waiting[0][0] == 0:
                await fill(service)
            while waiting:
                number, step = waiting.pop(0)
                await one(service, *step, number)
                if step[-1] == "restart":
                    break


def edited(history: list[Message], edit: str, place: int) -> int:
    """Edit a history, never its system message; return how many messages at its start are as they were."""
    if edit == "none" or len(history) < 2:
        return len(history)
    at = 1 + place % (len(history) - 1)
    if edit == "change":
        history[at] = replace(history[at], content=f"{history[at].content} (edited {place})")
    elif edit == "cut":
        # It goes on from an answer, as clients do that let a question be asked again.
        at -= history[at].role is Role.ASSISTANT
        del history[at:]
    elif edit == "remove":
        del history[at : at + 2]
    else:
        history[at:at] = [Message(Role.USER, f"Wait, {place}."), Message(Role.ASSISTANT, "Yes?")]
    return at


def messages_of(prompt: bytes) -> list[bytes]:
    """Return a prompt's messages; each begins with the mark that is the prompt's first byte."""
    return prompt.split(prompt[:1])[1:]


def common(before: list[bytes], now: list[bytes]) -> int:
    """Return how many messages at the start are the same; the last one before was an answer without its end."""
    count = 0
    for old, new in zip(before, now, strict=False):
        if old != new and not (count == len(before) - 1 and new.startswith(old)):
            break
        count += 1
    return count


def own(messages: list[bytes]) -> list[bytes]:
    """Leave out what was recalled, and the word after it."""
    out: list[bytes] = []
    is_recalled = False
    for message in messages:
        if is_recalled:
            is_recalled = False
        elif message.startswith(f"user\n{OPENING}".encode()):
            is_recalled = True
        else:
            out.append(message)
    return out


def without_recalled(prompt: bytes) -> bytes:
    """Take the recalled messages out of a prompt, whose first byte is the mark that begins a message."""
    head = prompt[:1] + f"user\n{OPENING}".encode()
    while (at := prompt.find(head)) >= 0:
        end = prompt.index(TAKEN, at) + len(TAKEN) + 2  # the mark that ends it, and a line end
        prompt = prompt[:at] + prompt[end:]
    return prompt


@settings(max_examples=10, deadline=None)
@given(steps=steps, system=st.booleans(), named=st.booleans())
def test_each_prompt_goes_on_where_the_one_before_ended_and_without_recall_is_the_plain_one(
    steps: list[tuple[str, bool, str]], system: bool, named: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, one_embedder():
        asyncio.run(run(Path(folder), steps, system=system, named=named))


@settings(max_examples=10, deadline=None)
@given(steps=edits, named=st.booleans())
def test_where_a_client_edits_its_history_all_before_the_edit_stays_as_it_was(
    steps: list[tuple[str, int, str, str]], named: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="ak-") as folder, one_embedder():
        asyncio.run(run_edited(Path(folder), steps, named=named))
