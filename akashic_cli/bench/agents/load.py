"""Plays episodes against a server: so many at a time, or beginning at random moments of a rate."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import httpx

from akashic_cli.bench.agents.strategies import Client, Setting
from akashic_cli.bench.agents.workload import Episode
from akashic_cli.bench.prompts import salted
from akashic_cli.bench.request import Measured, Target, measure
from akashic_cli.bench.transcripts import JsonObject
from akashic_daemon.errors import AkashicError

Played = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of an episode. `is_control`: it asked for a summary, which a user waits for too."""

    episode: str
    turn: int
    is_control: bool
    measured: Measured
    waited_s: float
    """From when the agent wanted its answer: for what follows a summary, the summary's time is in it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model wrote in place of messages of an episode, and the turn that was the next to be answered."""

    episode: str
    number: int
    turn: int
    text: str


@dataclass(slots=True)
class Load:
    """What one level came to. broken: episodes that an error ended, and its words."""

    wall_s: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    episodes: int = 0
    broken: list[str] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)


@dataclass(slots=True)
class Stage:
    """Where a level is played. label: makes its prompts its own, so that nothing of another level is reused."""

    target: Target
    strategy: str
    setting: Setting
    label: str
    played: Played
    load: Load = field(default_factory=Load)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def closed(self, episodes: Sequence[Episode], concurrency: int) -> Load:
        """Play all episodes, so many at a time: who is done takes the next."""
        waiting = list(enumerate(episodes))[::-1]

        def agent() -> None:
            while not self._ended.is_set():
                with self._lock:
                    if not waiting:
                        return
                    number, episode = waiting.pop()
                self._play(number, episode)

        self._together([agent] * min(concurrency, len(episodes)))
        return self.load

    def open(self, episodes: Sequence[Episode], per_s: float, seed: int) -> Load:
        """Begin each episode after a random time since the one before, `per_s` of them a second in the mean."""
        chance, at_s = random.Random(seed), 0.0
        agents = []
        for number, episode in enumerate(episodes):
            agents.append(self._later(at_s, number, episode))
            at_s += chance.expovariate(per_s)
        self._together(agents)
        return self.load

    def _later(self, at_s: float, number: int, episode: Episode) -> Callable[[], None]:
        def agent() -> None:
            if not self._ended.wait(at_s):
                self._play(number, episode)

        return agent

    def _together(self, agents: Sequence[Callable[[], None]]) -> None:
        started_s = time.perf_counter()
        threads = [threading.Thread(target=agent, daemon=True) for agent in agents]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self._ended.set()
            raise
        finally:
            self.load.wall_s = time.perf_counter() - started_s

    def _play(self, number: int, episode: Episode) -> None:
        """Play one episode; an error ends it and is kept."""
        session = f"{self.label}-{number}"
        messages = salted([dict(message) for message in episode.messages], session)
        try:
            with self.target.http() as http:
                _Agent(self, http, session, number, episode, messages).run()
        except AkashicError as error:
            with self._lock:
                self.load.broken.append(f"{episode.name}: {error.message}")
        with self._lock:
            self.load.episodes += 1

    def keep(self, sent: Sent) -> None:
        """Take in a request that was answered."""
        with self._lock:
            self.load.sent.append(sent)
        if not sent.is_control:
            self.played()

    def wrote(self, summary: Summary) -> None:
        """Take in a summary."""
        with self._lock:
            self.load.summaries.append(summary)

    @property
    def has_ended(self) -> threading.Event:
        """Set when everything is to stop."""
        return self._ended


@dataclass(slots=True)
class _Agent:
    stage: Stage
    http: httpx.Client
    session: str
    number: int
    episode: Episode
    messages: list[JsonObject]

    def run(self) -> None:
        """Send each request of the episode, its tools' times between.

        What is written while a tool runs delays nothing unless it takes longer.
        """
        client = Client(self.stage.strategy, self.stage.setting)
        answered_s = time.perf_counter()
        for turn, asked in enumerate(self.episode.turns):
            wanted_s = answered_s + asked.wait_s
            if self.stage.has_ended.wait(max(0.0, wanted_s - time.perf_counter())):
                return
            history = self.messages[: asked.history]
            if not client.is_early:
                self._summarise(client, turn, history, wanted_s)
            found = self._send(turn, client.prompt(history), asked.answer_tokens, wanted_s, False)
            answered_s = time.perf_counter()
            client.sent(found.prompt_tokens)
            if client.is_early and turn + 1 < len(self.episode.turns):
                self._summarise(client, turn + 1, history, answered_s)

    def _summarise(self, client: Client, turn: int, history: list[JsonObject], wanted_s: float) -> None:
        if not client.wants_summary(history):
            return
        found = self._send(turn, client.summary_request(history), self.stage.setting.summary_tokens, wanted_s, True)
        client.summarised(history, found.text)
        self.stage.wrote(Summary(self.episode.name, self.number, turn, found.text))

    def _send(self, turn: int, prompt: list[JsonObject], tokens: int, wanted_s: float, is_control: bool) -> Measured:
        before_s = time.perf_counter() - wanted_s
        target = replace(self.stage.target, max_tokens=tokens)
        found = measure(self.http, target, prompt, self.session)
        self.stage.keep(Sent(self.episode.name, turn, is_control, found, before_s + found.first_token_s))
        return found
