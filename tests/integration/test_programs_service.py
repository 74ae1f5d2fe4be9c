"""Cache programs, policies and edited histories through the service: what is shown, what is computed, what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any
from unittest import mock

import pytest

from akashic_daemon.engine.base import Capabilities
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import EngineError, Unsupported
from akashic_daemon.trajectory.message import Message, Role, ToolCall
from fake_service import ask, assistant, user
from watched_service import Outcome, Watch, driven, rendered, watched

SYSTEM = Message(Role.SYSTEM, "be exact. " * 4)
Run = Callable[[Watch], Awaitable[None]]


def tool(text: str) -> Message:
    return Message(Role.TOOL, text, tool_call_id="c")


def history(turns: int) -> list[Message]:
    out = [SYSTEM, user("go")]
    for i in range(turns):
        out += [assistant(f"call {i}"), tool(f"result {i} " * 3)]
    return out


def serve(
    home: FilePath, run: Run, *, engine: FakeEngine | None = None, flags: Mapping[str, Any] | None = None
) -> None:
    """Run `run` on a watched service; its index must be sound afterwards."""

    async def work() -> None:
        made = engine or FakeEngine(kv_cells=8192, window_tokens=2048)
        async with watched(home, lambda _n, _p: made, flags=flags) as watch:
            await run(watch)
            await watch.check_index()

    with driven():
        asyncio.run(work())


def shown(done: Outcome, messages: Sequence[Message]) -> bool:
    return done.shown == rendered(messages)


def test_a_program_with_places_drops_from_there_on_and_costs_nothing_again(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(4)
        ops = ({"op": "drop", "messages": [3], "at": 5},)
        first = await watch.ask(ask(*told, session="s", cache_ops=ops))
        again = await watch.ask(ask(*told, session="s", cache_ops=ops))
        assert shown(again, told[:3] + told[4:])
        assert again.finished.reuse.computed_tokens == 1
        assert again.finished.text == first.finished.text

    serve(home, run)


def test_the_same_program_without_places_stays_the_same_over_turns(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(3)
        await watch.ask(ask(*told, session="s"))
        ops = ({"op": "drop", "messages": [3]}, {"op": "replace", "message": 5, "content": "short"}, {"op": "repos"})
        dropped = set()
        for turn in range(4):
            done = await watch.ask(ask(*told, session="s", cache_ops=ops))
            expected = [*told[:3], told[4], replace(told[5], content="short"), *told[6:]]
            assert shown(done, expected)
            if turn:
                assert done.job.route.kind == "program"
                assert done.finished.reuse.computed_tokens < 60, done.finished.reuse
            dropped.add(done.finished.reuse.dropped_tokens)
            told += [assistant(done.finished.text or "x"), tool(f"more {turn}")]
        assert len(dropped) == 1

    serve(home, run)


def test_a_rolling_policy_shows_the_newest_results_only_and_a_turn_computes_what_is_new(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(0)
        for turn in range(14):
            told += [assistant(f"call {turn}"), tool(f"result {turn} " * 4)]
            done = await watch.ask(ask(*told, session="s", policy="tool-rolling-drop:keep=2"))
            results = [m for m in told if m.role is Role.TOOL][-2:]
            assert shown(done, [m for m in told if m.role is not Role.TOOL or m in results])
            if turn > 1:
                assert done.finished.reuse.computed_tokens < 150
        assert done.finished.reuse.dropped_tokens > 500

    serve(home, run)


def test_a_run_goes_on_past_the_window_and_its_turns_do_not_grow_dearer(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told, costs, moved = history(0), [], 0
        for turn in range(40):
            told += [assistant(f"c{turn}"), tool(f"result {turn} " * 4)]
            if len(told) > 16:  # an agent with a short memory of what it said itself
                del told[2:4]
            policy = "tool-rolling-drop:keep=2,threshold=60%,gain=5%"
            done = await watch.ask(ask(*told, session="s", policy=policy, edit_reuse="drop", max_tokens=8))
            costs.append(done.finished.reuse.computed_tokens)
            moved += done.finished.reuse.reposed_tokens
        assert len(done.job.route.path.tokens) > 600 or moved, "the window was never near"
        assert max(costs[20:]) <= 150, costs

    serve(home, run, engine=FakeEngine(kv_cells=2400, window_tokens=600))


EDITS: dict[str, Callable[[list[Message]], object]] = {
    "message_removed": lambda m: m.pop(3),
    "message_replaced": lambda m: m.__setitem__(3, tool("[old result]")),
    "message_inserted": lambda m: m.insert(4, user("by the way")),
    "longer": lambda m: m.__setitem__(3, tool(m[3].content + "and much more of it" * 3)),
    "two": lambda m: (m.pop(6), m.__setitem__(3, tool("."))),
}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edited_history_is_recognised_and_its_rest_not_computed_again(home: FilePath, kind: str) -> None:
    async def run(watch: Watch) -> None:
        told = history(12)
        await watch.ask(ask(*told, session="s"))
        EDITS[kind](told)
        told += [user("and now?")]
        done = await watch.ask(ask(*told, session="s", edit_reuse="drop"))
        assert shown(done, told)
        assert done.finished.reuse.plan == "edited"
        assert done.finished.reuse.computed_tokens < 200
        assert any("later KV has still seen" in note for note in done.finished.reuse.notes)

    serve(home, run)


@pytest.mark.parametrize("kind", ["message_removed", "message_replaced", "message_inserted"])
def test_by_default_an_edit_is_computed_again_and_the_answer_says_why_and_what_could_be_saved(
    home: FilePath, kind: str
) -> None:
    async def run(watch: Watch) -> None:
        told = history(12)
        await watch.ask(ask(*told, session="s"))
        EDITS[kind](told)
        done = await watch.ask(ask(*told, session="s"))
        assert shown(done, told)
        reuse = done.finished.reuse
        assert reuse.plan == "plain"
        assert reuse.miss is not None
        assert reuse.miss.cause == kind
        assert reuse.miss.expected != reuse.miss.got
        assert reuse.miss.could_reuse > reuse.reused_tokens

    serve(home, run)


def test_a_policy_alone_does_not_make_a_clients_edit_inexact(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(6)
        await watch.ask(ask(*told, session="s", policy="tool-rolling-drop:keep=4"))
        told[2] = assistant("another call")
        done = await watch.ask(ask(*told, session="s", policy="tool-rolling-drop:keep=4"))
        assert done.finished.reuse.plan != "edited"

    serve(home, run)


def test_what_a_program_replaced_is_never_taken_for_what_was_sent(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(6)
        ops = ({"op": "replace", "message": 3, "content": "gone", "at": 8},)
        await watch.ask(ask(*told, session="s", cache_ops=ops))
        done = await watch.ask(ask(*told, session="s", edit_reuse="drop"))
        assert shown(done, told)
        back = await watch.ask(ask(*told, session="s", cache_ops=ops, edit_reuse="drop"))
        assert shown(back, [*told[:3], tool("gone"), *told[4:]])

    serve(home, run)


def test_volatile_text_keeps_the_older_text_and_says_so(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        call = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("1", "f", '{"a": 1, "b": 2}'),))
        told = [Message(Role.SYSTEM, "now: 12:30\nbe exact"), user("go"), call, *history(5)[3:]]
        await watch.ask(ask(*told, session="s"))
        told[0] = replace(told[0], content="now: 12:31\nbe exact")
        told[2] = replace(call, tool_calls=(ToolCall("1", "f", '{"b":2,"a":1}'),))
        for _ in range(2):
            done = await watch.ask(ask(*told, user("next"), session="s", edit_reuse="drop"))
            assert done.shown.startswith("<|im_start|>system\nnow: 12:30\n")
            assert '{"a": 1, "b": 2}' in done.shown
            assert done.finished.reuse.computed_tokens < 60
            notes = " ".join(done.finished.reuse.notes)
            assert "volatile_text" in notes
            assert "tokenized otherwise" not in notes

    serve(home, run, flags={"cache.volatile_text": r"^now: .*$"})


def test_with_nothing_cached_the_pruned_text_is_computed_and_the_answer_says_so(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(8)
        done = await watch.ask(ask(*told, session="s", policy="tool-rolling-drop:keep=1"))
        reuse = done.finished.reuse
        assert reuse.plan == "plain"
        assert reuse.computed_tokens < len(rendered(told)) // 2
        assert any("pruned text was computed" in note for note in reuse.notes)

    serve(home, run)


def test_a_session_is_not_disturbed_by_what_others_drop_and_move(home: FilePath) -> None:
    ops = [
        {"op": "drop", "messages": [3]}, {"op": "replace", "message": 5, "content": "a longer text than before" * 3},
        {"op": "repos"},
    ]  # fmt: skip

    async def run(watch: Watch) -> None:
        told = history(4)
        calm = await watch.ask(ask(*told, session="calm"))
        busy = [ask(*told, session=f"b{n}", cache_ops=tuple(ops[: n + 1])) for n in range(3)]
        again, *_ = await asyncio.gather(watch.ask(ask(*told, session="calm")), *map(watch.ask, busy))
        assert again.finished.text == calm.finished.text
        assert again.finished.reuse.computed_tokens == 1

    serve(home, run)


def test_two_requests_of_one_session_at_once_are_both_answered_rightly(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(4)
        await watch.ask(ask(*told, session="s"))
        one, two = [*told[:3], *told[4:]], [*told, user("else")]
        done = await asyncio.gather(*(watch.ask(ask(*m, session="s", edit_reuse="drop")) for m in (one, two, one)))
        assert [shown(d, m) for d, m in zip(done, (one, two, one), strict=True)] == [True] * 3

    serve(home, run)


def test_a_replacement_finds_its_sequence_where_there_are_only_two(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(4)
        await asyncio.gather(*(watch.ask(ask(*told, user(str(n)), session=f"o{n}")) for n in range(3)))
        ops = ({"op": "replace", "message": 3, "content": "x", "at": 6}, {"op": "drop", "messages": [5], "at": 8})
        requests = [ask(*told, user(f"question {n}"), session=f"s{n}", cache_ops=ops) for n in range(3)]
        for done in await asyncio.gather(*map(watch.ask, requests)):
            assert done.finished.finish_reason in ("stop", "length")

    serve(home, run, engine=FakeEngine(kv_cells=700, max_sequences=2, window_tokens=600))


@pytest.mark.parametrize("call", ["save", "load", "decode"])
def test_an_engine_that_fails_in_an_operation_ends_that_request_and_the_next_one_works(
    home: FilePath, call: str
) -> None:
    engine = FakeEngine(kv_cells=4096, window_tokens=2048)

    async def run(watch: Watch) -> None:
        told = history(4)
        await watch.ask(ask(*told, session="s"))
        ops = ({"op": "drop", "messages": [3]}, {"op": "repos"})
        failing = mock.Mock(side_effect=EngineError("the device is gone"))
        with mock.patch.object(engine, call, failing), pytest.raises(EngineError, match="device is gone"):
            await watch.ask(ask(*told, user("more"), session="s", cache_ops=ops))
        await watch.check_index()
        done = await watch.ask(ask(*told, user("more"), session="s", cache_ops=ops))
        assert shown(done, [*told[:3], *told[4:], user("more")])

    serve(home, run, engine=engine)


class Limited(FakeEngine):
    """Can append only."""

    @property
    def capabilities(self) -> Capabilities:
        """Say that nothing can be dropped or moved."""
        why = {"drop": "its layers are recurrent", "repos": "its layers are recurrent"}
        return replace(
            super().capabilities, drop=False, repos=False, tail_gap=False, range_export=False, why_not=why
        )  # fmt: skip


def test_a_model_that_cannot_drop_refuses_programs_with_the_reason_and_still_answers_without(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(3)
        before = await watch.ask(ask(*told, session="s"))
        for extra in ({"cache_ops": ({"op": "drop", "messages": [3]},)}, {"policy": "tool-rolling-drop"}):
            with pytest.raises(Unsupported, match="can't drop KV: its layers are recurrent"):
                await watch.ask(ask(*told, session="s", **extra))
        stored = await watch.service.export_session("s")
        assert [m.content for m in stored] == [m.content for m in told] + [before.finished.text]
        del told[3]
        done = await watch.ask(ask(*told, session="s", edit_reuse="drop"))
        assert done.finished.reuse.plan == "plain"
        assert shown(done, told)

    serve(home, run, engine=Limited(kv_cells=4096, window_tokens=2048))


class Gapless(FakeEngine):
    """Can drop, but a sequence's positions must follow one another."""

    @property
    def capabilities(self) -> Capabilities:
        """Say that a tail can't be dropped."""
        return replace(super().capabilities, tail_gap=False, why_not={"tail_gap": "its positions have several parts"})


def test_a_model_without_tail_gaps_refuses_a_dropped_tail_with_the_reason_and_drops_what_precedes(
    home: FilePath,
) -> None:
    async def run(watch: Watch) -> None:
        told = [*history(3), Message(Role.TOOL, "the newest result")]
        with pytest.raises(Unsupported, match="dropped or replaced tail: its positions have several parts"):
            await watch.ask(ask(*told, session="s", cache_ops=({"op": "drop", "messages": [len(told) - 1]},)))
        done = await watch.ask(ask(*told, session="s", cache_ops=({"op": "drop", "messages": [3]},)))
        assert shown(done, [*told[:3], *told[4:]])

    serve(home, run, engine=Gapless(kv_cells=4096, window_tokens=2048))


def test_a_trace_of_one_model_is_not_used_for_another(home: FilePath) -> None:
    async def work() -> None:
        async with watched(home, lambda _n, _p: Named(_n), models=("a", "b")) as watch:
            told = history(6)
            await watch.ask(ask(*told, session="s", model="a"))
            del told[3]
            done = await watch.ask(ask(*told, session="s", model="b", edit_reuse="drop"))
            assert done.finished.reuse.plan == "plain"
            assert done.finished.reuse.reused_tokens == 0
            assert shown(done, told)

    with driven():
        asyncio.run(work())


class Named(FakeEngine):
    """Says which model it is."""

    def __init__(self, name: str) -> None:
        super().__init__(kv_cells=4096)
        self._name = name

    @property
    def model(self) -> Any:
        """The fake's model by another name."""
        return replace(super().model, name=self._name, fingerprint=f"model1:{self._name}")


def test_a_newest_message_that_was_written_anew_counts_as_replaced(home: FilePath) -> None:
    async def run(watch: Watch) -> None:
        told = history(4)
        await watch.ask(ask(*told, user("first thought"), session="s"))
        done = await watch.ask(ask(*told, user("second thought"), session="s"))
        miss = done.finished.reuse.miss
        assert miss is not None
        assert (miss.cause, miss.at_message) == ("message_replaced", len(told))

    serve(home, run)
