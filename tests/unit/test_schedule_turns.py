"""Whose turn it is, how many run together, and how many prompt tokens a step takes beside streams."""

from __future__ import annotations

import itertools
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.engine.base import SamplingParams
from akashic_daemon.program.path import Path
from akashic_daemon.program.route import Route
from akashic_daemon.protocol.native import Reuse
from akashic_daemon.schedule.batch_limit import BatchLimit
from akashic_daemon.schedule.fair_queue import FairQueue
from akashic_daemon.schedule.prefill_budget import PrefillBudget
from akashic_daemon.schedule.request import Request
from akashic_daemon.types import Priority, RequestId


def request(name: str, session: str | None, priority: Priority = "normal", created_s: float = 0.0) -> Request:
    route = Route.of("plain", Path(array("i", [1])), array("i", [0]))
    return Request(
        id=RequestId(name), session=session, routes=(route,), prompt_tokens=1, window_tokens=9, params=SamplingParams(),
        budget_tokens=1, stop=(), emit=lambda _event: None, explain=lambda *_: None, reuse=Reuse(), created_s=created_s,
        model="m", priority=priority,
    )  # fmt: skip


def filled(*waiting: tuple[str, str | None, Priority]) -> FairQueue:
    queue = FairQueue()
    for at, (name, session, priority) in enumerate(waiting):
        queue.add(request(name, session, priority, created_s=float(at)))
    return queue


def drained(queue: FairQueue) -> list[str]:
    return [queue.take().id for _ in range(len(queue))]


def test_a_session_that_asks_for_much_takes_its_turn_like_the_others() -> None:
    queue = filled(*((f"a{i}", "a", "normal") for i in range(5)), ("b0", "b", "normal"), ("b1", "b", "normal"))
    assert drained(queue) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_requests_without_a_session_come_in_the_order_of_their_arrival() -> None:
    assert drained(filled(*((f"r{i}", None, "normal") for i in range(4)))) == ["r0", "r1", "r2", "r3"]


def test_a_session_that_was_just_served_goes_behind_one_that_was_not() -> None:
    queue = filled(("a0", "a", "normal"), ("b0", "b", "normal"), ("c0", "c", "normal"))
    assert queue.take().id == "a0"
    queue.add(request("a1", "a"))
    assert drained(queue) == ["b0", "c0", "a1"]


def test_a_session_that_was_just_served_goes_behind_one_that_came_meanwhile() -> None:
    queue = filled(("a0", "a", "normal"), ("b0", "b", "normal"), ("c0", "c", "normal"))
    assert queue.take().id == "a0"
    queue.add(request("new", None, created_s=20.0))
    queue.add(request("a1", "a", created_s=10.0))
    assert drained(queue) == ["b0", "c0", "new", "a1"]


def test_newcomers_without_end_do_not_keep_a_session_from_its_second_turn() -> None:
    queue = filled(("a0", "a", "normal"), ("a1", "a", "normal"), ("b0", "b", "normal"))
    taken = []
    for i in range(12):
        taken.append(queue.take().id)
        queue.add(request(f"new{i}", None, created_s=10.0 + i))
    assert "a1" in taken[:6]


def test_interactive_comes_first_and_background_last_yet_it_comes() -> None:
    queue = filled(("low", "l", "background"), ("mid", "m", "normal"), ("high", "h", "interactive"))
    assert drained(queue) == ["high", "mid", "low"]
    queue = filled(("low", "l", "background"), *((f"m{i}", "m", "normal") for i in range(30)))
    assert 4 <= drained(queue).index("low") <= 10


def test_an_urgent_request_pulls_those_of_its_session_before_it_along() -> None:
    queue = filled(("m", "m", "normal"), ("slow", "s", "background"), ("fast", "s", "interactive"))
    assert drained(queue) == ["slow", "fast", "m"]


def test_what_had_to_give_way_goes_on_before_all_others() -> None:
    queue = filled(("a0", "a", "normal"), ("high", "h", "interactive"))
    queue.give_back(request("again", "z", "background"))
    assert drained(queue) == ["again", "high", "a0"]


def test_a_removed_request_leaves_the_turns_of_others_as_they_were() -> None:
    queue = filled(("a0", "a", "normal"), *((f"b{i}", "b", "normal") for i in range(2)), ("a1", "a", "normal"))
    gone = queue.head
    assert gone is not None
    assert queue.remove(gone)
    assert not queue.remove(gone)
    assert drained(queue) == ["b0", "a1", "b1"], "it didn't count as a turn of its session"


def test_many_sessions_served_once_leave_nothing_behind() -> None:
    queue = FairQueue()
    for i in range(5000):
        queue.add(request(f"r{i}", f"s{i}"))
        queue.take()
    assert len(queue._served) < 200
    assert not queue._flows


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from(("interactive", "normal", "background"))),
        min_size=1,
        max_size=60,
    ),
    st.lists(st.booleans(), max_size=60),
)
def test_each_request_gets_one_turn_and_those_of_a_session_keep_their_order(
    asked: list[tuple[str, Priority]], takes: list[bool]
) -> None:
    queue, taken = FairQueue(), []
    for i, (session, priority) in enumerate(asked):
        queue.add(request(f"{session}{i}", session, priority, float(i)))
        if i < len(takes) and takes[i]:
            taken.append(queue.take())
    taken += [queue.take() for _ in range(len(queue))]
    assert sorted(r.created_s for r in taken) == [float(i) for i in range(len(asked))]
    for session in "abcdef":
        own = [r.created_s for r in taken if r.session == session]
        assert own == sorted(own)


@settings(deadline=None)
@given(st.integers(2, 64), st.integers(1, 5))
def test_with_as_many_turns_each_no_session_is_ever_two_turns_ahead(sessions: int, each: int) -> None:
    queue = filled(*((f"{s}-{i}", f"s{s}", "normal") for s in range(sessions) for i in range(each)))
    served = dict.fromkeys(range(sessions), 0)
    for name in drained(queue):
        served[int(name.split("-")[0])] += 1
        assert max(served.values()) - min(served.values()) <= 1


def test_the_batch_halves_under_memory_pressure_and_doubles_when_there_is_room() -> None:
    limit = BatchLimit(16)
    limit.see(held=95, cells=100, running=12)
    assert limit.now == 6
    limit.see(held=95, cells=100, running=6)
    assert limit.now == 3
    limit.see(held=70, cells=100, running=3)
    assert limit.now == 3, "between the two it stays"
    limit.see(held=10, cells=100, running=3)
    assert limit.now == 6
    limit.see(held=40, cells=100, running=6)
    assert limit.now == 12
    limit.see(held=0, cells=100, running=0)
    assert limit.now == 16


def test_the_batch_never_grows_past_what_fits_nor_shrinks_to_nothing() -> None:
    limit = BatchLimit(16)
    for _ in range(9):
        limit.see(held=99, cells=100, running=1)
    assert limit.now == 1
    limit.see(held=40, cells=100, running=1)
    assert limit.now == 2
    limit.see(held=45, cells=100, running=1)
    assert limit.now == 2, "a third wouldn't fit"


def simulated(budget: PrefillBudget, *, alone_s: float, token_s: float, steps: int, streams: int = 3) -> list[int]:
    """Let steps take what a linear machine takes; return the prompt tokens of each."""
    chosen = []
    for _ in range(steps):
        tokens = budget.tokens(streams)
        budget.observe(streams, tokens, alone_s + token_s * tokens)
        chosen.append(tokens)
    return chosen


@pytest.mark.parametrize(("alone_s", "token_s"), [(0.020, 0.0015), (0.008, 0.0001), (0.100, 0.002)])
def test_a_step_beside_streams_takes_little_more_than_twice_the_time_of_streams_alone(
    alone_s: float, token_s: float
) -> None:
    chosen = simulated(PrefillBudget(4096), alone_s=alone_s, token_s=token_s, steps=400)
    settled = [n for n in chosen[40:] if n]
    assert max(alone_s + n * token_s for n in settled) <= 2.25 * alone_s
    assert min(settled) * token_s >= 0.8 * min(1.2 * alone_s, settled[0] * token_s), "the room is used"


def test_streams_alone_are_measured_first_and_again_now_and_then() -> None:
    chosen = simulated(PrefillBudget(64), alone_s=0.02, token_s=0.001, steps=200)
    assert chosen[0] == 0
    assert 5 <= chosen[1:].count(0) <= 9
    assert all(a or b for a, b in itertools.pairwise(chosen)), "never two steps in a row without prefill"


def test_the_budget_follows_a_machine_that_gets_slower() -> None:
    budget = PrefillBudget(256)
    fast = simulated(budget, alone_s=0.02, token_s=0.0005, steps=100)[-1]
    slow = simulated(budget, alone_s=0.02, token_s=0.002, steps=100)[-1]
    assert fast > 40
    assert 10 <= slow <= 12


def test_a_prefill_goes_on_however_slow_its_tokens_are_and_never_faster_than_set() -> None:
    assert simulated(PrefillBudget(256), alone_s=0.01, token_s=0.5, steps=50)[-1] == 2
    assert max(simulated(PrefillBudget(3), alone_s=0.01, token_s=1e-6, steps=50)) == 3
    assert max(simulated(PrefillBudget(40), alone_s=1.0, token_s=1e-6, steps=50)) == 40


def test_a_step_that_hangs_for_a_second_changes_nothing() -> None:
    budget = PrefillBudget(256)
    before = simulated(budget, alone_s=0.02, token_s=0.001, steps=60)[-1]
    budget.observe(3, 0, 1.0)
    budget.observe(3, before, 1.0)
    assert budget.tokens(3) == before
