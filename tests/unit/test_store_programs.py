"""What a session's program keeps, who takes it over, and how long explanations stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from akashic_daemon.errors import NotFound
from akashic_daemon.program.message_ops import DropMessages, DropTokens, ReplaceMessage, ReposAt
from akashic_daemon.store.database import Database, open_database
from akashic_daemon.store.programs import KEPT_EXPLANATIONS, ProgramStore, SessionProgram
from akashic_daemon.store.sessions import SessionStore
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import SystemClock

OPS = (
    DropMessages((1,), at=2),
    DropTokens(((4, 9),), at=3),
    ReplaceMessage(2, "short\ud800", at=4),
    ReplaceMessage(2, (1, 2), at=4),
    ReposAt(at=4),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "a.db")) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> SessionStore:
    sessions = SessionStore(database, SystemClock())
    sessions.create("run", origin="chat")
    sessions.append("run", [Message(Role.USER, str(i)) for i in range(4)])
    return sessions


def test_a_session_without_a_program_has_an_empty_one(store: SessionStore, database: Database) -> None:
    assert ProgramStore(database).get("run") == SessionProgram()


def test_policy_and_operations_come_back_as_they_were_set_whichever_came_first(
    store: SessionStore, database: Database
) -> None:
    programs = ProgramStore(database)
    programs.set_ops("run", OPS)
    programs.set_policy("run", "window:recent=3", 2)
    assert programs.get("run") == SessionProgram("window:recent=3", 2, OPS)
    programs.set_ops("run", ())
    assert programs.get("run") == SessionProgram("window:recent=3", 2, ())
    programs.set_policy("run", None, 0)
    assert programs.get("run") == SessionProgram()


def test_a_fork_takes_over_what_took_effect_in_the_history_it_shares(store: SessionStore, database: Database) -> None:
    programs = ProgramStore(database)
    programs.set_ops("run", OPS)
    programs.set_policy("run", "window", 4)
    store.fork("run", "all", None)
    store.fork("run", "early", 3)
    assert programs.get("all") == SessionProgram("window", 4, OPS)
    assert programs.get("early") == SessionProgram("window", 3, OPS[:2])
    programs.set_ops("all", ())
    assert programs.get("run").ops == OPS


def test_what_a_removed_session_was_asked_and_told_is_gone(store: SessionStore, database: Database) -> None:
    programs = ProgramStore(database)
    programs.set_ops("run", OPS)
    programs.add_explanation("run", "{}")
    store.remove("run")
    assert database.connection.execute("SELECT count(*) FROM programs").fetchone()[0] == 0
    assert database.connection.execute("SELECT count(*) FROM explanations").fetchone()[0] == 0
    store.create("run", origin="chat")
    assert programs.get("run") == SessionProgram()


def test_the_newest_explanations_are_kept_and_keep_their_numbers(store: SessionStore, database: Database) -> None:
    programs = ProgramStore(database)
    turns = [programs.add_explanation("run", f'{{"n": {i}}}') for i in range(KEPT_EXPLANATIONS + 3)]
    assert turns == list(range(1, KEPT_EXPLANATIONS + 4))
    assert programs.explanation("run") == (203, '{"n": 202}')
    assert programs.explanation("run", 4) == (4, '{"n": 3}')
    with pytest.raises(NotFound, match="turn 3") as caught:
        programs.explanation("run", 3)
    assert caught.value.hint == "turns 4 to 203 are kept"


def test_an_unknown_session_is_refused_with_the_nearest_name(store: SessionStore, database: Database) -> None:
    programs = ProgramStore(database)
    for call in (
        lambda: programs.get("rum"),
        lambda: programs.set_policy("rum", None, 0),
        lambda: programs.set_ops("rum", ()),
        lambda: programs.add_explanation("rum", "{}"),
        lambda: programs.explanation("rum"),
    ):
        with pytest.raises(NotFound) as caught:
            call()
        assert caught.value.hint == "did you mean 'run'?"
    with pytest.raises(NotFound, match="no explained turn"):
        programs.explanation("run")
