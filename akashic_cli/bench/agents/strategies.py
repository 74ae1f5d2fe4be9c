"""Ways to keep a history short, as an agent or its server does it; what they cost is charged to them in full.

    none       the whole history, always
    drop       the server's policy tool-rolling-drop: KV of old tool results leaves the cache, nothing is computed again
    prune      the client empties all but the newest tool results in its text, as coding agents do
    summarise  past a threshold the client asks the model for a summary and goes on with it and the newest messages
    rewrite    a memory that the model writes anew whenever so many tokens are new, while the agent's tool runs

A number may follow, `drop:4`, `summarise:2048`: results that stay, or tokens; `+memory` turns our long-term memory on.
Summaries are asked for at the end of the unchanged history, so what is cached of that is reused: the cheapest way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from akashic_cli.bench.request import Target
from akashic_cli.bench.transcripts import Edit, JsonObject
from akashic_daemon.errors import UsageError

NAMES = ("none", "drop", "prune", "summarise", "rewrite")
SUMMARISING = ("summarise", "rewrite")
_NUMBER = {"drop": "keep", "prune": "keep", "summarise": "threshold_tokens", "rewrite": "gate_tokens"}
_NAME = re.compile(rf"({'|'.join(NAMES)})(?::(\d{{1,9}}))?(\+memory)?")
ASK_FOR_SUMMARY = (
    "Write a summary of this conversation for your own use: the task, what was done, what was found out with exact names, "
    "numbers and paths, and what is left to do. Nothing else."
)
_SUMMARY_MARK = "Summary of the conversation so far:\n"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the strategies are set to.

    threshold_tokens: a prompt that long is summarised before the next one is sent. gate_tokens: so many new ones make
    `rewrite` write its memory anew.
    """

    keep: int = 12
    threshold_tokens: int = 4096
    keep_messages: int = 4
    summary_tokens: int = 256
    memory: bool = False
    gate_tokens: int = 1024


def parse_names(text: str) -> list[str]:
    """Read `--policies`. Raises UsageError."""
    names = [part.strip() for part in text.split(",")]
    wrong = [name for name in names if _NAME.fullmatch(name) is None or name.startswith("none:")]
    if wrong or len(set(names)) != len(names):
        what = f"there is no {wrong[0]!r}" if wrong else "a name stands there twice"
        raise UsageError(
            f"reading --policies {text!r}: {what}",
            hint=f"some of {', '.join(NAMES)}, with a number where wanted: drop:4, summarise:2048, drop:4+memory",
        )
    return names


def meaning(name: str, setting: Setting) -> tuple[str, Setting]:
    """Return which strategy a name means, and its setting: the name's number and memory before the general ones."""
    match = _NAME.fullmatch(name)
    assert match is not None, f"parse_names let {name!r} through"
    kind, number, memory = match.groups()
    changed = {} if number is None else {_NUMBER[kind]: int(number)}
    return kind, replace(setting, memory=setting.memory or memory is not None, **changed)


def is_summarising(name: str) -> bool:
    """Tell if a strategy has a model write summaries: what the others are compared with."""
    return name.startswith(SUMMARISING)


def directed(target: Target, name: str, setting: Setting, *, is_ours: bool) -> Target:
    """Return the target with what a strategy asks of the server. Raises UsageError when only akashic can do it."""
    kind, setting = meaning(name, setting)
    if not is_ours:
        if needs_ours(name, setting):
            what = "drop" if kind == "drop" else "--memory"
            raise UsageError(f"measuring {what} on {target.base_url}: only akashic does that", hint="leave it out")
        return target
    own: JsonObject = {
        "session": "$SESSION",
        "policy": f"tool-rolling-drop:keep={setting.keep}" if kind == "drop" else "none",
    }
    if setting.memory:
        own["memory"] = True
    return replace(target, extra={**target.extra, "akashic": own})


def needs_ours(name: str, setting: Setting) -> bool:
    """Tell if only our server can do what a strategy wants."""
    kind, setting = meaning(name, setting)
    return kind == "drop" or setting.memory


@dataclass(slots=True)
class Client:
    """One agent's own idea of its history, under one strategy."""

    name: str
    setting: Setting
    _kind: str = field(init=False)
    _summary: str | None = None
    _summarised: int = 0
    _is_long: bool = False
    _first_tokens: int | None = None

    def __post_init__(self) -> None:
        self._kind, self.setting = meaning(self.name, self.setting)

    @property
    def is_early(self) -> bool:
        """Tell if summaries are asked for while a tool runs, not when the next answer is wanted."""
        return self._kind == "rewrite"

    def wants_summary(self, messages: list[JsonObject]) -> bool:
        """Tell if enough came together, and a summary would take the place of anything new."""
        return (
            self._kind in SUMMARISING
            and self._is_long
            and self._cut(messages) > max(self._summarised, self._head(messages))
        )

    @staticmethod
    def _head(messages: list[JsonObject]) -> int:
        """Return how many messages at the start always stay."""
        return int(messages[0]["role"] == "system")

    def _cut(self, messages: list[JsonObject]) -> int:
        """Return where the newest messages begin; a tool's result stays with the call that it answers."""
        start = max(self._summarised, self._head(messages), len(messages) - self.setting.keep_messages)
        while start < len(messages) and messages[start]["role"] == "tool":
            start += 1
        return start

    def prompt(self, messages: list[JsonObject]) -> list[JsonObject]:
        """Return what is sent of a history."""
        if self._kind == "prune":
            return Edit("prune", self.setting.keep).apply(messages)
        if self._summary is None:
            return messages
        head = messages[: self._head(messages)]
        said = {"role": "user", "content": _SUMMARY_MARK + self._summary}
        return [*head, said, *messages[self._summarised :]]

    def summary_request(self, messages: list[JsonObject]) -> list[JsonObject]:
        """Return the prompt that asks for a summary."""
        return [*self.prompt(messages), {"role": "user", "content": ASK_FOR_SUMMARY}]

    def summarised(self, messages: list[JsonObject], text: str) -> None:
        """Go on with a summary of all but the newest messages."""
        self._summarised = self._cut(messages)
        self._summary, self._is_long, self._first_tokens = text, False, None

    def sent(self, prompt_tokens: int) -> None:
        """Take in how long the last prompt was."""
        if self._first_tokens is None:
            self._first_tokens = prompt_tokens
        new = prompt_tokens - self._first_tokens
        limit = self.setting.gate_tokens if self.is_early else self.setting.threshold_tokens
        self._is_long = (new if self.is_early else prompt_tokens) >= limit
