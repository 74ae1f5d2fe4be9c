"""Idle sessions are parked for the sake of those that run, never the very session whose next turn has come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.schedule import loop
from akashic_daemon.service import Service
from fake_service import answer, ask, assistant, user
from tiers_service import LONG, on_service, say, settled

_DEAR_HOLES = replace(FakeEngine(kv_cells=8192, window_tokens=4096).capabilities, hole_s=1.0)


def test_a_turn_finds_its_own_session_in_the_engine_however_often_others_are_parked(home: Path) -> None:
    async def check(service: Service) -> None:
        said = await answer(service, ask(user(LONG), session="s", max_tokens=4))
        await settled(service)
        told = (user(LONG), assistant(said.text), user("and then?"))
        again = (await answer(service, ask(*told, session="s", max_tokens=4))).reuse
        assert again.reused_by_tier["gpu"] == again.reused_tokens > 400
        await say(service, "other", "quite another matter. " * 30, max_tokens=40)
        assert service._loop.tiering.parked_tokens > 400

    with (
        mock.patch.object(loop, "_PARK_EVERY_STEPS", 1),
        mock.patch.object(FakeEngine, "capabilities", property(lambda _: _DEAR_HOLES)),
    ):
        on_service(home, check)
