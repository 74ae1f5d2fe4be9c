"""Memory in conversations: recalled at the tail, reproduced byte for byte, and filled by what is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from akashic_daemon.errors import BadRequest, NotFound
from akashic_daemon.memory.answers import Remembered
from akashic_daemon.memory.recalled import CLOSING, OPENING
from akashic_daemon.protocol.memory import MemoryAsk
from akashic_daemon.service import Service
from fake_service import answer, ask, assistant, user
from memory_service import FACTS, fill, on_service, prompts, routes, turn, visible

PARROT = "What does the parrot eat?"
ALTERNATING = (
    "{% for m in messages %}{% if loop.index0 > 0 and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_what_fits_stands_before_the_question_and_its_sources_are_told(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        with prompts() as seen:
            done = await answer(service, ask(user(PARROT), memory=True))
        text = seen[0].decode("utf-8", "replace")
        assert text.index(OPENING) < text.index(FACTS[0]) < text.index(CLOSING) < text.index(PARROT)
        told = done.reuse.memory
        assert told is not None
        assert 0 < told.tokens <= service.settings.config.memory.budget_tokens
        assert ("old", "user") in {(one.source, one.speaker) for one in told.turns}

    on_service(home, check)


def test_nothing_is_put_there_when_nothing_is_to_the_point(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        with prompts() as seen:
            for question in ("Thanks, that will do!", "hello", "Please write a sonnet about the ocean"):
                done = await answer(service, ask(user(question), memory=True))
                assert done.reuse.memory is not None
                assert done.reuse.memory.turns == []
        assert all(OPENING.encode() not in prompt for prompt in seen)

    on_service(home, check)


def test_later_requests_get_what_was_recalled_at_the_same_place_also_after_a_restart(home: Path) -> None:
    first = ask(user(PARROT), memory=True)
    kept: list[bytes] = []

    async def begin(service: Service) -> None:
        await fill(service)
        with prompts() as seen:
            done = await answer(service, first)
        kept.extend([seen[0], done.text.encode()])

    async def go_on(service: Service) -> None:
        await fill(service, ["The parrot eats seeds now, and pears; it eats them with the parrot of next door."])
        history = (user(PARROT), assistant(kept[1].decode()), user("And where is the meeting with Joanna?"))
        with prompts() as seen:
            done = await answer(service, replace(first, messages=history))
        assert seen[0].startswith(kept[0] + kept[1])
        assert seen[0].count(OPENING.encode()) == 2
        assert b"pears" not in seen[0].split(PARROT.encode())[0]
        assert done.reuse.memory is not None
        assert done.reuse.memory.turns

    on_service(home, begin)
    on_service(home, go_on)


def test_a_request_that_is_sent_again_has_the_same_prompt_though_memory_has_grown(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        with prompts() as seen:
            await answer(service, ask(user(PARROT), memory=True))
            await fill(
                service, ["The parrot eats seeds, the parrot eats them with what the parrot drinks"], source="new"
            )
            done = await answer(service, ask(user(PARROT), memory=True))
        assert seen[0] == seen[1]
        assert done.reuse.computed_tokens <= 1

    on_service(home, check)


def test_who_does_not_ask_or_asks_elsewhere_gets_nothing_of_it(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service, namespace="project:secret")
        secret = MemoryAsk(namespaces=["project:secret"])
        with prompts() as seen:
            await answer(service, ask(user(PARROT), memory=secret))
            for memory in (None, False, True, MemoryAsk(namespaces=["project:other", "session:s"])):
                await answer(service, ask(user(PARROT), memory=memory))
        assert [FACTS[0].encode() in prompt for prompt in seen] == [True, False, False, False, False]

    on_service(home, check)


@pytest.mark.parametrize(
    "fields",
    [{"cache_ops": ({"op": "drop", "messages": [1]},)}, {"drop_message": {"2": [1]}}],
)
def test_operations_by_number_mean_the_messages_that_were_sent(home: Path, fields: dict[str, Any]) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        first = await answer(service, ask(user(PARROT), memory=True, session="s"))
        history = (user(PARROT), assistant(first.text), user("Thanks!"))
        with routes() as seen:
            await answer(service, ask(*history, memory=True, session="s", **fields))
        shown = b"".join(visible(seen[0]))
        assert [text.encode() in shown for text in (OPENING, PARROT, first.text, "Thanks!")] == [
            True,
            True,
            False,
            True,
        ]

    on_service(home, check)


def test_numbers_that_mean_nothing_that_was_sent_are_refused_as_they_were_sent(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        for operation, said in (
            ({"op": "drop", "messages": [1]}, "there is no message 1; 1 were sent"),
            ({"op": "drop", "select": "messages 0..2"}, "there is no message 2; 1 were sent"),
            ({"op": "repos", "at": 2}, "takes effect before message 2, but 1 messages were sent"),
            ({"op": "drop", "tokens": [[0, 4]]}, "what is recalled moves their numbers"),
            ({"op": "drop", "messages": [0]}, "sent as drop message 0.*newest user message"),
        ):
            with pytest.raises(BadRequest, match=said):
                await answer(service, ask(user(PARROT), memory=True, cache_ops=(operation,)))

    on_service(home, check)


def test_templates_in_which_roles_must_alternate_are_kept_to(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        with prompts() as seen:
            done = await answer(service, ask(user(PARROT), memory=True))
            history = (user(PARROT), assistant(done.text), user("And where is the meeting with Joanna?"))
            await answer(service, ask(*history, memory=True))
        assert seen[0].count(OPENING.encode()) == 1
        assert seen[1].startswith(seen[0] + done.text.encode())
        assert seen[1].count(OPENING.encode()) == 2

    on_service(home, check, template=ALTERNATING)


def test_a_request_that_fills_the_window_is_answered_without_recall_and_says_so(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        before = (user("long " * 170), assistant("ok"))
        done = await answer(service, ask(*before, user(PARROT), memory=True, max_tokens=32))
        assert any("nothing was recalled" in note for note in done.reuse.notes)

    on_service(home, check, window_tokens=1024)


def test_turns_of_a_session_recall_and_keep_what_they_recalled(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        with prompts() as seen:
            done = await turn(service, "s", PARROT)
            assert done.reuse is not None
            assert done.reuse.memory is not None
            assert [one.source for one in done.reuse.memory.turns][:1] == ["old"]
            again = await turn(service, "s", "Thanks!")
        stored = await service.export_session("s")
        assert [m.role.value for m in stored] == ["user", "assistant", "user", "assistant", "user", "assistant"]
        assert stored[0].content.startswith(OPENING)
        assert seen[1].startswith(seen[0] + done.text.encode())
        assert again.reuse is not None
        assert again.reuse.reused_tokens >= len(seen[0])
        await turn(service, "other", PARROT, memory=False)
        assert [m.role.value for m in await service.export_session("other")] == ["user", "assistant"]

    on_service(home, check)


def test_what_leaves_the_window_goes_to_memory_and_is_recalled_for_the_question(home: Path) -> None:
    async def check(service: Service) -> None:
        key = "The key of the boathouse hangs behind the blue barometer."
        filler = [f"Line {n} of the minutes: nobody disagreed about point {n} of the agenda." for n in range(200)]
        messages = [
            user(key),
            assistant("noted"),
            *(user(t) if n % 2 else assistant(t) for n, t in enumerate(filler, 1)),
        ]
        await service.sessions._thread.run(lambda: service.sessions._store.ensure("t", origin="import:test"))
        await service.sessions._thread.run(lambda: service.sessions._store.append("t", messages))
        with prompts() as seen:
            done = await turn(service, "t", "Where does the key of the boathouse hang?")
        assert done.reuse is not None
        assert done.reuse.left_out_messages > 100
        told = done.reuse.memory
        assert told is not None
        assert told.remembered > 100
        assert "t" in {one.source for one in told.turns}
        assert key.encode() in seen[0]
        before = (await service.memory.stats()).namespaces[0].turns
        again = await turn(service, "t", "And the agenda?")
        assert again.reuse is not None
        assert again.reuse.memory is not None
        assert again.reuse.memory.remembered < 50
        assert (await service.memory.stats()).namespaces[0].turns - before == again.reuse.memory.remembered

    on_service(home, check, window_tokens=2048, flags={"memory.budget_tokens": 512})


def test_a_finished_session_goes_into_memory_once_without_what_was_recalled_into_it(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        await turn(service, "s", PARROT)
        await turn(service, "private", "My locker has the number 31337.", memory=False)
        memory = service.chat_memory
        assert await memory.remember_finished() == 0
        memory._config = memory._config.model_copy(update={"finished_after_s": -1})
        assert await memory.remember_finished() == 1
        assert await memory.remember_finished() == 0
        found = await service.memory.search("parrot locker", limit=50)
        assert PARROT in {one.turn.text for one in found}
        assert [one.turn.text for one in found if OPENING in one.turn.text or "31337" in one.turn.text] == []
        assert sum(one.turn.text == FACTS[0] for one in found) == 1

    on_service(home, check)


def test_a_session_that_is_removed_takes_its_mark_with_it(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        await turn(service, "s", PARROT)
        await service.remove_session("s")
        service.chat_memory._config = service.chat_memory._config.model_copy(update={"finished_after_s": -1})
        assert await service.chat_memory.remember_finished() == 0

    on_service(home, check)


def test_a_session_that_is_removed_while_it_is_taken_in_is_not_in_memory(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        await turn(service, "s", "The locker of Quasimodo has the number 31337.", memory=True)
        add = service.memory.add

        async def removed_meanwhile(*args: Any, **options: Any) -> Remembered:
            await service.remove_session("s")
            assert await service.chat_memory.turns_of("s") == 0
            return await add(*args, **options)

        with mock.patch.object(service.memory, "add", removed_meanwhile), pytest.raises(NotFound):
            await service.chat_memory.remember("s")
        assert await service.chat_memory.turns_of("s") == 0
        found = {one.turn.text for one in await service.memory.search("locker parrot rent", limit=50)}
        assert not any("31337" in text for text in found)
        assert set(FACTS[:2]) <= found

    on_service(home, check)
    assert not any(b"31337" in file.read_bytes() for file in home.rglob("memory*") if file.is_file())


def test_half_a_surrogate_in_a_question_is_searched_for_and_kept_as_what_it_can_be_written_as(home: Path) -> None:
    async def check(service: Service) -> None:
        await fill(service)
        await turn(service, "s", f"{PARROT} \ud83d", memory=True, system="be brief \udc00")
        said = [message.content for message in await service.sessions.export_session("s")]
        assert any("\ufffd" in text for text in said)
        assert not any("\ud83d" in text or "\udc00" in text for text in said)

    on_service(home, check)


def test_what_took_the_place_of_remembered_messages_is_remembered_too(home: Path) -> None:
    first = (user("The heron nests at the mill."), assistant("I see."))

    async def check(service: Service) -> None:
        memory = service.chat_memory
        memory._config = memory._config.model_copy(update={"finished_after_s": -1})
        history = (*first, user("The stork nests on the barn."))
        await answer(service, replace(ask(*history, memory=True), session="s"))
        assert await memory.remember_finished() == 1
        history = (*first, user("The crane nests in the reeds."))
        await answer(service, replace(ask(*history, memory=True), session="s"))
        assert await memory.remember_finished() == 1
        assert await memory.remember_finished() == 0
        found = {one.turn.text for one in await service.memory.search("who nests where?", limit=50)}
        assert {
            "The heron nests at the mill.",
            "The stork nests on the barn.",
            "The crane nests in the reeds.",
        } <= found

    on_service(home, check)
