"""Random lives of sessions on a service with tiers: they talk, branch, get other names, are removed, tiers are emptied.

Whatever happens: answers are the twin's, figures agree with what is there, and of a removed session no KV is left.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.protocol.native import ForkRequest
from akashic_daemon.protocol.tiers import HintRequest, PruneRequest
from akashic_daemon.service import Service
from akashic_daemon.trajectory.message import Message
from fake_service import NEVER, ask, assistant, user
from tiers_service import TIERS, catalogue, empty_engine, empty_ram, settled, stored_bytes, tier
from watched_service import Watch, watched


class Lives:
    """Sessions by name, each with its history; `secrets` says what only removed ones knew."""

    def __init__(self, watch: Watch, chance: random.Random) -> None:
        self.watch, self.chance = watch, chance
        self.histories: dict[str, list[Message]] = {}
        self.secrets: set[str] = set()
        self.numbers = iter(range(1000))

    @property
    def service(self) -> Service:
        return self.watch.service

    def any_session(self) -> str | None:
        return self.chance.choice(sorted(self.histories)) if self.histories else None

    async def talk(self) -> None:
        number = next(self.numbers)
        name = self.any_session()
        if name is None or self.chance.random() < 0.4:
            name = f"s{number}"
        history = self.histories.setdefault(name, [user("what all sessions begin with. " * 8)])
        history.append(user(f"secret-{number}-of-{name} " + "and more of it " * self.chance.randint(0, 12)))
        outcome = await self.watch.ask(ask(*history, session=name, max_tokens=self.chance.choice((1, 5, 20))))
        history.append(assistant(outcome.finished.text))

    async def branch(self) -> None:
        name = self.any_session()
        if name is None:
            return
        at = self.chance.randint(1, len(self.histories[name]))
        new = f"f{next(self.numbers)}"
        await self.service.fork_session(name, ForkRequest(name=new, at_message=at))
        self.histories[new] = self.histories[name][:at]

    async def remove(self) -> None:
        name = self.any_session()
        if name is None:
            return
        said = {m.content for m in self.histories.pop(name)}
        removed = await self.service.remove_session(name)
        assert removed.kv_left == ""
        others = {m.content for history in self.histories.values() for m in history}
        self.secrets |= {text.split(" ")[0] for text in said - others if text.startswith("secret-")}

    async def prune(self) -> None:
        request = self.chance.choice(
            [PruneRequest(everything=True), PruneRequest(to_bytes=self.chance.randint(0, 40_000)), PruneRequest(other_models=True)]
        )  # fmt: skip
        told = await self.service.prune(request)
        done = await self.service.prune(request.model_copy(update={"dry_run": False}))
        if request.to_bytes is None:
            assert (told.ssd_blocks, told.ssd_bytes) == (done.ssd_blocks, done.ssd_bytes)

    async def use(self) -> None:
        name = self.any_session()
        if name is not None:
            await self.service.prefetch(name)
            await self.service.hint(name, HintRequest(expect_s=self.chance.choice((0.0, 60.0))))

    async def lose(self) -> None:
        await settled(self.service)
        if self.chance.random() < 0.5:
            await empty_ram(self.service)
        await empty_engine(self.service)

    async def check(self, home: Path) -> None:
        async with asyncio.timeout(60):
            while True:
                report = await settled(self.service)
                blocks = catalogue(self.service)
                ram = tier(report, "ram")
                if ram.blocks == sum(b.slots is not None for b in blocks):
                    break  # else a hinted session is just coming back: the figures are of another moment
        assert ram.payload_bytes == sum(b.slots.size_bytes for b in blocks if b.slots is not None)
        assert tier(report, "ssd").blocks == sum(b.on_ssd or b.is_labelled for b in blocks)
        assert {g for b in blocks for g in b.groups} <= set(self.histories)
        assert (await self.service.verify_store()).findings == []
        await self.watch.check_index()
        held = b"".join(bytes(t for t in b.tokens if t < 256) for b in blocks)
        on_disk = stored_bytes(home)
        for secret in self.secrets:
            assert f"{secret} ".encode() not in held, "the catalogue knows what only a removed session said"
            assert b"".join(t.to_bytes(4, "little") for t in secret.encode()) not in on_disk


@pytest.mark.parametrize("seed", range(6))
def test_whatever_sessions_do_answers_figures_and_deletions_are_true(home: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def run() -> None:
        def engine(_name: str, _path: Path) -> FakeEngine:
            return FakeEngine(kv_cells=chance.choice((3000, 8192)), window_tokens=2500, end_every=NEVER)

        async with watched(home, engine, flags=TIERS) as watch:
            assert watch.service._loading is not None
            await asyncio.wait({watch.service._loading})
            exporter = watch.service._loop.tiering._exporter
            assert exporter is not None
            exporter.min_recompute_s = 0.0
            lives = Lives(watch, chance)
            actions = [lives.talk] * 5 + [lives.branch, lives.remove, lives.remove, lives.prune, lives.use, lives.lose]
            for step in range(30):
                await chance.choice(actions)()
                if step % 6 == 5:
                    await lives.check(home)
            while lives.histories:
                await lives.remove()
            await lives.check(home)
            assert catalogue(watch.service) == []

    asyncio.run(run())
