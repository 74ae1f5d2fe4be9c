"""Memory never changes a prefix (invariant 8): whatever is asked, each prompt goes on where the one before it ended."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.engine.fake import FakeEngine
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
    st.tuples(questions, st.booleans(), st.sampled_from(["ask", "again", "grow", "restart"])), min_size=2, max_size=4
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
        if kind == "grow":
            await fill(service, [f"{fact} ({number})" for fact in FACTS], source=f"more-{number}")
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
