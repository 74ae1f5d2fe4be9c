"""Programs on live sessions, and scripts: what they do to a session, and that what fails changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from akashic_daemon.context.script import script
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.errors import AkashicError, AssertionFailed, BadRequest, NotFound, ScriptError, Unsupported
from akashic_daemon.protocol import native
from akashic_daemon.protocol.context import (
    AppendRequest,
    ContextView,
    EditReuseRequest,
    OpsRequest,
    PolicyRequest,
    ScriptEvent,
    ScriptRequest,
)
from akashic_daemon.service import Service
from akashic_daemon.store.programs import SessionProgram
from akashic_daemon.trajectory.message import Message
from fake_service import NEVER, answer, ask, running_service, user

Work = Callable[[Service], Awaitable[None]]
HISTORY = [
    ("system", "be brief"),
    ("user", "list the files"),
    ("tool", "a.txt b.txt c.txt"),
    ("assistant", "three files"),
    ("tool", "d.txt"),
    ("assistant", "and one"),
    ("user", "which is newest?"),
]


def make(_name: str, _path: Path) -> FakeEngine:
    return FakeEngine(kv_cells=1 << 16, window_tokens=1 << 14, end_every=NEVER)


def run(home: Path, work: Work, **flags: Any) -> None:
    async def main() -> None:
        async with running_service(home, make, flags={"chat.policy": "none", **flags}) as service:
            for role, content in HISTORY:
                await service.context.append("run", AppendRequest(role=role, content=content))
            await work(service)

    asyncio.run(main())


async def drop(service: Service, selector: str) -> ContextView:
    return (await service.context.edit("run", OpsRequest(ops=[{"op": "drop", "select": selector}]))).context


async def played(service: Service, text: str, *, session: str = "run", **options: Any) -> list[ScriptEvent]:
    async with aclosing(script(service.context, session, ScriptRequest(script=text, **options))) as events:
        return [event async for event in events]


async def state(service: Service, session: str = "run") -> tuple[list[Message], SessionProgram | None]:
    return await service.sessions.export_session(session), await service.sessions.program(session)


async def names(service: Service) -> set[str]:
    return {s.session for s in (await service.list_sessions()).sessions}


def test_a_fresh_session_is_drawn_with_every_token_visible_at_its_position(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        drawn = await service.context.show("run")
        assert [(m.role, m.label) for m in drawn.messages] == HISTORY
        assert {m.state for m in drawn.messages} == {"visible"}
        assert sum(m.tokens for m in drawn.messages) == drawn.visible_tokens == drawn.next_position
        ends = [m.positions[0][1] for m in drawn.messages]
        assert [m.positions[0][0] for m in drawn.messages] == [0, *ends[:-1]]
        assert (drawn.policy, drawn.own_policy, drawn.ops, drawn.window_tokens) == ("none", False, [], 1 << 14)

    run(tmp_path, work)


def test_a_drop_hides_a_message_and_a_repos_closes_the_gap(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        before = await service.context.show("run")
        dropped = await drop(service, "tool[0]")
        assert [m.state for m in dropped.messages if m.state != "visible"] == ["dropped"]
        gone = dropped.messages[2]
        assert (gone.visible_tokens, gone.positions, dropped.dropped_tokens) == (0, [], gone.tokens)
        assert dropped.next_position == before.next_position
        assert [(op.text, op.at, op.by, op.tokens) for op in dropped.ops] == [
            ("drop message 2", 7, "session", gone.tokens)
        ]
        moved = (await service.context.edit("run", OpsRequest(ops=[{"op": "repos"}]))).context
        assert moved.next_position == moved.visible_tokens == before.visible_tokens - gone.tokens
        assert moved.messages[3].positions[0][0] == before.messages[2].positions[0][0]

    run(tmp_path, work)


def test_a_replacement_stands_at_the_place_of_its_message(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        before = await service.context.show("run")
        op = {"op": "replace", "message": 2, "content": "gone"}
        result = await service.context.edit("run", OpsRequest(ops=[op]))
        shown = result.context.messages[2]
        assert shown.state == "replaced"
        assert shown.positions[0][0] == before.messages[2].positions[0][0]
        assert 0 < shown.visible_tokens < shown.tokens == before.messages[2].tokens
        assert [added.text for added in result.added] == ["replace message 2"]

    run(tmp_path, work)


def test_tokens_can_be_dropped_out_of_a_message(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        start = (await service.context.show("run")).messages[2].positions[0][0]
        shown = (await drop(service, f"tokens {start + 3}..{start + 4}")).messages[2]
        assert shown.state == "partly dropped"
        assert shown.positions == [(start, start + 3), (start + 5, start + shown.tokens)]

    run(tmp_path, work)


BAD_OPS: list[tuple[dict[str, Any], str]] = [
    ({"op": "drop", "messages": [7]}, r"cache_ops\[0\] \(drop message 7\): there is no message 7"),
    ({"op": "drop", "select": "messages 3..40"}, "message 40 doesn't exist"),
    ({"op": "drop", "messages": [0]}, "system message, and protected"),
    ({"op": "drop", "messages": [6]}, "newest user message"),
    ({"op": "drop", "tokens": [[95, 99], [97, 101]]}, r"overlaps"),
    ({"op": "drop", "tokens": [[5, 99999]]}, "outside the prompt"),
    ({"op": "drop", "select": "messages 5..6"}, r"\(drop messages 5..6\): message 6 is the newest user message"),
    ({"op": "drop", "select": "tokens 3..4"}, "protected message: message 0 is a system"),
    ({"op": "replace", "select": "message 6", "content": "x"}, "newest user message"),
    ({"op": "drop", "messages": [2], "at": 3}, "at its end"),
    ({"op": "drop", "select": "tol[0]"}, "tol"),
    ({"op": "replace", "message": 0, "content": "x"}, "protected"),
    ({"op": "grow"}, "no operation 'grow'"),
]


def test_an_operation_that_cannot_be_carried_out_is_named_and_changes_nothing(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        await drop(service, "tool[0]")
        before = await state(service)
        for op, words in BAD_OPS:
            with pytest.raises(BadRequest, match=words):
                await service.context.edit("run", OpsRequest(ops=[op]))
            assert await state(service) == before
        with pytest.raises(BadRequest, match="at most 4096"):
            await service.context.edit("run", OpsRequest(ops=[{"op": "repos"}] * 4097))
        with pytest.raises(BadRequest, match="a program of 4097 operations; at most 4096"):
            await service.context.edit("run", OpsRequest(ops=[{"op": "repos"}] * 4096))
        with pytest.raises(BadRequest, match="no operation was sent"):
            await service.context.edit("run", OpsRequest(ops=[]))
        with pytest.raises(NotFound) as caught:
            await service.context.edit("ru", OpsRequest(ops=[{"op": "repos"}]))
        assert caught.value.hint == "did you mean 'run'?"
        assert await state(service) == before

    run(tmp_path, work)


def test_a_policy_is_asked_from_where_it_was_set_and_unknown_ones_name_the_nearest(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        drawn = await service.context.set_policy("run", PolicyRequest(policy="tool-rolling-drop:keep=1"))
        assert (drawn.own_policy, drawn.policy_since) == (True, 7)
        assert drawn.policy.startswith("tool-rolling-drop:keep=1")
        await service.context.append("run", AppendRequest(role="assistant", content="c.txt"))
        later = await service.context.set_policy("run", PolicyRequest(policy="tool-rolling-drop:keep=1"))
        assert later.policy_since == 7
        assert [(op.text, op.at, op.by) for op in later.ops if op.text != "repos"] == [("drop message 2", 7, "policy")]
        with pytest.raises(BadRequest) as caught:
            await service.context.set_policy("run", PolicyRequest(policy="tool-roling-drop"))
        assert caught.value.hint == "did you mean 'tool-rolling-drop'?"
        with pytest.raises(BadRequest, match="no parameter"):
            await service.context.set_policy("run", PolicyRequest(policy="tool-rolling-drop:kep=1"))
        assert (await service.context.show("run")).policy == later.policy
        back = await service.context.set_policy("run", PolicyRequest(policy=None))
        assert (back.own_policy, back.policy, back.ops) == (False, "none", [])

    run(tmp_path, work)


def test_an_engine_that_cannot_move_kv_refuses_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(service: Service) -> None:
        from dataclasses import replace

        real = FakeEngine.capabilities
        assert isinstance(real, property)
        monkeypatch.setattr(
            FakeEngine,
            "capabilities",
            property(lambda self: replace(real.fget(self), repos=False, why_not={"repos": "its rope is unknown"})),
        )
        before = await state(service)
        with pytest.raises(Unsupported, match=r"cache_ops\[0\] \(repos\).*can't repos KV: its rope is unknown"):
            await service.context.edit("run", OpsRequest(ops=[{"op": "repos"}]))
        assert await state(service) == before

    run(tmp_path, work)


SCRIPT = """
append tool "e.txt f.txt"
checkpoint here
drop tool[:-1]
assert tool_results == 1 and free_positions > 0
rollback here
assert tool_results == 3
drop tool[0]
replace message 4 with "gone"
append user "and now?"
generate 8 tokens
assert reused > 0 and computed > 0
repos
show
"""


def test_a_script_moves_its_session_to_where_it_ended(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        await played(service, "generate 4 tokens")
        events = await played(service, SCRIPT)
        steps = [e for e in events if e.kind == "step"]
        assert [e.line for e in steps] == list(range(2, 15))
        assert events[-1].kind == "done"
        assert "".join(e.text for e in events if e.kind == "text")
        messages, program = await state(service)
        assert [m.role.value for m in messages[7:]] == ["assistant", "tool", "user", "assistant"]
        assert program is not None
        assert [str(op) for op in program.ops] == ["drop message 2", "replace message 4", "repos"]
        shown = steps[-1].context
        assert shown is not None
        assert (shown.session, shown.next_position) == ("run", steps[-1].next_position)
        assert await names(service) == {"run"}
        assert (await service.context.explanation("run", None)).turn == 2

    run(tmp_path, work)


async def turn(service: Service, session: str) -> native.Reuse:
    request = native.TurnRequest(prompt="go on", max_tokens=4)
    async with aclosing(service.turn(session, request)) as events:
        done = [event async for event in events][-1]
    assert done.reuse is not None
    return done.reuse


def test_the_turn_after_a_script_goes_on_from_what_the_script_computed(tmp_path: Path) -> None:
    text = (
        'generate 4 tokens\ndrop tool[0]\nappend user "x"\ngenerate 4 tokens\nrepos\nappend user "y"\ngenerate 4 tokens'
    )

    async def work(service: Service) -> None:
        await played(service, text)
        await played(service, 'append user "a"\nappend tool "some long result of a tool"\n' + text, session="new")
        for session in ("run", "new"):
            reuse = await turn(service, session)
            added = (await service.context.show(session)).messages[-2]
            assert added.label == "go on"
            assert reuse.computed_tokens <= added.tokens + 30, session

    run(tmp_path, work)


def test_a_script_that_fails_leaves_what_its_session_has_computed(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        await turn(service, "run")
        with pytest.raises(AssertionFailed):
            await played(service, 'append user "x"\ngenerate 4 tokens\nassert messages == 1')
        reuse = await turn(service, "run")
        added = (await service.context.show("run")).messages[-2]
        assert reuse.computed_tokens <= added.tokens + 30

    run(tmp_path, work)


def test_a_dry_run_says_what_the_run_then_does_and_changes_nothing(tmp_path: Path) -> None:
    text = 'drop tool[:-1]\nappend user "and now?"\nreplace message 4 with "gone"\nrepos\nassert tool_results == 1'

    async def work(service: Service) -> None:
        before = await state(service)
        planned = await played(service, text, dry_run=True)
        assert await state(service) == before
        real = await played(service, text)
        facts = (
            "line",
            "appended_tokens",
            "dropped_tokens",
            "moved_tokens",
            "messages",
            "visible_tokens",
            "next_position",
        )
        assert [[getattr(e, f) for f in facts] for e in planned[:-1]] == [
            [getattr(e, f) for f in facts] for e in real[:-1]
        ]
        assert planned[0].saved_tokens > 0

    run(tmp_path, work)


def test_a_script_that_fails_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    fails: list[tuple[str, type[AkashicError], str]] = [
        ("drop tool[0]\nassert tool_results == 5", AssertionFailed, "line 2 .*tool_results is 1, expected == 5"),
        ("generate 4 tokens\nassert reused >= 100000", AssertionFailed, "reused is [0-9]+, expected >= 100000"),
        ("assert reused >= 1", ScriptError, "line 1 .*reused isn't known before an answer"),
        ('append user "x"\ndrop message 40', ScriptError, r"line 2 \(drop message 40\): .*message 40"),
        ("branch other\nassert messages == 1", AssertionFailed, "messages is 7, expected == 1"),
        (
            "repos\ndrop message 0",
            ScriptError,
            r"line 2 \(drop message 0\): message 0 is a system message, and protected",
        ),
        ("drop messages 2..6", ScriptError, "newest user message"),
        ("branch run", ScriptError, "exists already"),
        ('append user file "gone.txt"', ScriptError, "gone.txt"),
        ("drp tool", ScriptError, "line 1, column 1"),
        ("rollback nowhere", ScriptError, "nowhere"),
    ]

    async def work(service: Service) -> None:
        before = await state(service)
        for text, kind, words in fails:
            with pytest.raises(kind, match=words):
                await played(service, text)
            assert await state(service) == before, text
            assert await names(service) == {"run"}, text
        for text, words in (("drop message 0", "protected"), ("drop message 40", "message 40")):
            with pytest.raises(ScriptError, match=words):
                await played(service, text, dry_run=True)
        with pytest.raises(AssertionFailed, match="tool_results is 2, expected == 5"):
            await played(service, "assert tool_results == 5", dry_run=True)
        assert AssertionFailed("x").exit_code == 1
        with pytest.raises(AssertionFailed):
            await played(service, 'append user "x"\nassert messages == 9', session="new")
        assert await names(service) == {"run"}

    run(tmp_path, work)


def test_a_branch_goes_on_and_leaves_the_session_where_it_branched(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        await played(service, 'drop tool[0]\nbranch second\nappend user "else?"\ndrop tool[0]')
        messages, program = await state(service)
        assert len(messages) == 7
        assert program is not None
        assert [str(op) for op in program.ops] == ["drop message 2"]
        messages, program = await state(service, "second")
        assert messages[-1].content == "else?"
        assert program is not None
        assert [str(op) for op in program.ops] == ["drop message 2", "drop message 4"]
        found = {s.session: s.forked_from for s in (await service.list_sessions()).sessions}
        assert found == {"run": None, "second": "run"}

    run(tmp_path, work)


def test_a_script_may_begin_a_session_and_a_branch_of_it(tmp_path: Path) -> None:
    text = 'append system "be brief"\nappend user file "q.txt"\ngenerate 4 tokens\nbranch b\nappend user "again"\ngenerate 4 tokens'

    async def work(service: Service) -> None:
        await played(service, text, session="a", files={"q.txt": "a river?"})
        first, second = (await state(service, "a"))[0], (await state(service, "b"))[0]
        assert [m.content for m in first[:2]] == ["be brief", "a river?"]
        assert (len(first), len(second)) == (3, 5)
        found = {s.session: s.forked_from for s in (await service.list_sessions()).sessions}
        assert found == {"run": None, "a": None, "b": "a"}
        assert (await service.context.explanation("b", None)).turn == 1

    run(tmp_path, work)


def test_a_session_that_changed_while_its_script_ran_keeps_the_change(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        events = script(service.context, "run", ScriptRequest(script='append user "a"\nappend user "b"'))
        await anext(events)
        await service.context.append("run", AppendRequest(role="user", content="meanwhile"))
        with pytest.raises(AkashicError, match="changed meanwhile"):
            async for _ in events:
                pass
        assert (await state(service))[0][-1].content == "meanwhile"
        assert await names(service) == {"run"}

    run(tmp_path, work)


def test_a_client_that_leaves_in_the_middle_of_a_script_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        before = await state(service)
        async with aclosing(script(service.context, "run", ScriptRequest(script="generate\ngenerate"))) as events:
            assert (await anext(events)).kind == "text"
        assert await state(service) == before
        assert await names(service) == {"run"}

    run(tmp_path, work)


def test_the_index_is_told_as_a_tree_down_to_a_depth(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        assert (await service.context.cache_tree(5)).roots == []
        await played(service, 'generate 4 tokens\ndrop tool[0]\nappend user "more"\ngenerate 4 tokens')
        tree = await service.context.cache_tree(50)
        assert tree.cells_used > 0
        kinds = set()
        stack, count = list(tree.roots), 0
        while stack:
            node = stack.pop()
            count += 1
            kinds.add(node.kind)
            stack.extend(node.children)
        assert kinds == {"run", "drop"}
        assert count == tree.nodes
        cut = await service.context.cache_tree(1)
        assert sum(1 + root.hidden_nodes for root in cut.roots) == tree.nodes
        with pytest.raises(BadRequest, match="0 nodes deep"):
            await service.context.cache_tree(0)

    run(tmp_path, work)


def test_a_session_says_what_its_edited_history_becomes(tmp_path: Path) -> None:
    async def work(service: Service) -> None:
        drawn = await service.context.set_edit_reuse("agent", EditReuseRequest(edit_reuse="drop"))
        assert drawn.edit_reuse == "drop"
        history = [user(f"a rather long message number {n}") for n in range(4)]
        for messages, plan in ((history, "plain"), (history[:1] + history[2:], "edited")):
            ended = await answer(service, ask(*messages, session="agent", max_tokens=4))
            assert ended.reuse.plan == plan
        assert (await service.context.set_edit_reuse("agent", EditReuseRequest(edit_reuse=None))).edit_reuse is None

    run(tmp_path, work)
