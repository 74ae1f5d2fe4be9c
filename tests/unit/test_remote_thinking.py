"""Whether a model on another server is told to think."""

from __future__ import annotations

from typing import Any

import pytest

from akashic_daemon.remote.messages import body_of
from akashic_daemon.schedule.events import GenerationInput
from akashic_daemon.trajectory.message import Message, Role


@pytest.mark.parametrize(
    ("think", "told"), [(None, None), (True, {"enable_thinking": True}), (False, {"enable_thinking": False})]
)
def test_another_server_is_told_whether_to_think(think: bool | None, told: Any) -> None:
    asked = GenerationInput(messages=(Message(Role.USER, "x"),), think=think)
    assert body_of(asked, asked.messages or (), "m").get("chat_template_kwargs") == told
