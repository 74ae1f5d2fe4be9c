"""Ways to keep a history short, as an agent or its server does it; what they cost is charged to them in full.

    none       the whole history, always
    drop       the server's policy tool-rolling-drop: KV of old tool results leaves the cache, nothing is computed again
    prune      the client empties all but the newest tool results in its text, as coding agents do
    summarise  past a threshold the client asks the model for a summary and goes on with it and the newest messages

The summary is asked for at the end of the unchanged history, so what is cached of that is reused: the cheapest way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from akashic_cli.bench.request import Target
from akashic_cli.bench.transcripts import Edit, JsonObject
from akashic_daemon.errors import UsageError

NAMES = ("none", "drop", "prune", "summarise")
ASK_FOR_SUMMARY = (
    "Write a summary of this conversation for your own use: the task, what was done, what was found out with exact names, "
    "numbers and paths, and what is left to do. Nothing else."
)
_SUMMARY_MARK = "Summary of the conversation so far:\n"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the strategies are set to. threshold_tokens: a prompt that long is summarised before the next one is sent."""

    keep: int = 12
    threshold_tokens: int = 4096
    keep_messages: int = 4
    summary_tokens: int = 256
    memory: bool = False


def parse_names(text: str) -> list[str]:
    """Read `--policies`. Raises UsageError."""
    names = [part.strip() for part in text.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown or len(set(names)) != len(names):
        what = f"there is no {unknown[0]!r}" if unknown else "a name stands there twice"
        raise UsageError(f"reading --policies {text!r}: {what}", hint=f"some of {', '.join(NAMES)}")
    return names


def directed(target: Target, name: str, setting: Setting, *, is_ours: bool) -> Target:
    """Return the target with what a strategy asks of the server. Raises UsageError when only akashic can do it."""
    if not is_ours:
        if name == "drop" or setting.memory:
            what = "drop" if name == "drop" else "--memory"
            raise UsageError(f"measuring {what} on {target.base_url}: only akashic does that", hint="leave it out")
        return target
    own: JsonObject = {
        "session": "$SESSION",
        "policy": f"tool-rolling-drop:keep={setting.keep}" if name == "drop" else "none",
    }
    if setting.memory:
        own["memory"] = True
    return replace(target, extra={**target.extra, "akashic": own})


@dataclass(slots=True)
class Client:
    """One agent's own idea of its history, under one strategy."""

    name: str
    setting: Setting
    _summary: str | None = None
    _summarised: int = 0
    _is_long: bool = False

    def wants_summary(self, messages: list[JsonObject]) -> bool:
        """Tell if the last prompt passed the threshold, and a summary would take the place of anything new."""
        return (
            self.name == "summarise"
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
        if self.name == "prune":
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
        self._summary, self._is_long = text, False

    def sent(self, prompt_tokens: int) -> None:
        """Take in how long the last prompt was."""
        self._is_long = prompt_tokens >= self.setting.threshold_tokens
