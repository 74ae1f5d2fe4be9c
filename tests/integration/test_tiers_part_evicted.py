"""A session of which the engine lost a part gets that part back: what it still has isn't given up for it."""

from __future__ import annotations

from pathlib import Path

from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message, Role
from akashic_daemon.types import BLOCK_TOKENS
from fake_service import answer, ask, user
from tiers_service import on_service, settled

AMPLE = {"cache.ram_bytes": "64MiB", "cache.ssd_bytes": "0"}


def test_sessions_that_do_not_fit_whole_compute_only_what_is_new(tmp_path: Path) -> None:
    # Each wants 1,100 cells and more: what one turn of the other's puts out is a part of it, at its end.
    async def check(service: Service) -> None:
        histories = {name: [user(f"{name} begins and tells " * 50)] for name in ("left", "right")}
        prompts = dict.fromkeys(histories, 0)
        tiers_gave = 0
        for turn in range(4):
            for name, history in histories.items():
                reuse = (await answer(service, ask(*history, session=name, max_tokens=4))).reuse
                await settled(service)
                prompt = reuse.reused_tokens + reuse.computed_tokens
                assert reuse.computed_tokens <= prompt - prompts[name] + BLOCK_TOKENS
                if turn:
                    assert reuse.reused_by_tier["gpu"] > prompts[name] // 4
                    tiers_gave += reuse.reused_by_tier.get("ram", 0)
                prompts[name] = prompt
                history += [Message(Role.ASSISTANT, "as recorded"), user(f"{name} goes on in turn {turn}")]
        assert tiers_gave > 0

    on_service(tmp_path, check, flags=AMPLE, kv_cells=1978)
