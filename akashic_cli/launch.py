"""What each coding agent must be told to use this daemon: environment variables, arguments, and the context that fits.

Pure: it neither asks the daemon nor starts anything. Names of variables and options are the clients' own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

NO_TOKEN = "none"
"""Clients want a key even where the daemon wants none."""
_KEY = "LOCAL_MODEL_API_KEY"
"""Where clients with a configuration of their own find the token: it stays out of arguments, which others can read."""
_WEEK_MS = 7 * 24 * 3600 * 1000
"""Clients give up on a silent server by default; a long prefill isn't one."""


class Agent(StrEnum):
    """Clients whose settings are known; `env` is any program with an OpenAI or Anthropic SDK."""

    claude = "claude"
    codex = "codex"
    opencode = "opencode"
    aider = "aider"
    env = "env"


@dataclass(frozen=True, slots=True)
class Target:
    """The daemon as a client sees it. window_tokens: prompt and answer together; None where it isn't known."""

    url: str
    token: str
    model: str
    window_tokens: int | None

    @property
    def answer_tokens(self) -> int | None:
        """The longest answer that a client should plan with."""
        return None if self.window_tokens is None else max(1, min(32_000, self.window_tokens // 4))

    @property
    def prompt_tokens(self) -> int | None:
        """The context that a client may fill: the window without an answer."""
        if self.window_tokens is None or self.answer_tokens is None:
            return None
        return self.window_tokens - self.answer_tokens


@dataclass(frozen=True, slots=True)
class Setup:
    """How to start a client: variables added to the environment, and the command; empty for `env`."""

    env: Mapping[str, str]
    command: tuple[str, ...] = field(default=())

    def as_shell(self) -> str:
        """Return it as lines for a shell."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        return "\n".join([*lines, *([shlex.join(self.command)] if self.command else [])])


def setup(agent: Agent, target: Target) -> Setup:
    """Return how a client is started on the daemon."""
    return _SETUPS[agent](target)


def _claude(target: Target) -> Setup:
    env = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.token,
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "API_TIMEOUT_MS": str(_WEEK_MS),
    }
    if target.window_tokens is not None:
        env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.answer_tokens)
        env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.prompt_tokens)
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.prompt_tokens)
    return Setup(env, ("claude",))


def _codex(target: Target) -> Setup:
    provider = {
        "name": "akashic",
        "base_url": f"{target.url}/v1",
        "env_key": _KEY,
        "wire_api": "responses",
        "stream_idle_timeout_ms": _WEEK_MS,
    }
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    options = [
        f"model={json.dumps(target.model)}", 'model_provider="akashic"', f"model_providers.akashic={{{table}}}",
    ]  # fmt: skip
    if target.window_tokens is not None:
        options.append(f"model_context_window={target.window_tokens}")
        options.append(f"model_auto_compact_token_limit={target.prompt_tokens}")
    return Setup({_KEY: target.token}, ("codex", *(part for option in options for part in ("-c", option))))


def _opencode(target: Target) -> Setup:
    model: dict[str, object] = {"name": target.model}
    if target.window_tokens is not None:
        model["limit"] = {"context": target.window_tokens, "output": target.answer_tokens}
    config = {
        "model": f"akashic/{target.model}",
        "small_model": f"akashic/{target.model}",
        "provider": {
            "akashic": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "akashic",
                "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{_KEY}}}", "timeout": False},
                "models": {target.model: model},
            }
        },
    }
    return Setup({_KEY: target.token, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}, ("opencode",))


def _aider(target: Target) -> Setup:
    command = ["aider", "--model", f"openai/{target.model}", "--no-show-model-warnings"]
    if target.window_tokens is not None:
        command += ["--max-chat-history-tokens", str(target.window_tokens // 4)]
    return Setup({"OPENAI_API_BASE": f"{target.url}/v1", "OPENAI_API_KEY": target.token}, tuple(command))


def _env(target: Target) -> Setup:
    return Setup(
        {
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_BASE": f"{target.url}/v1",
            "OPENAI_API_KEY": target.token,
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": target.token,
        }
    )


_SETUPS: Mapping[Agent, Callable[[Target], Setup]] = {
    Agent.claude: _claude, Agent.codex: _codex, Agent.opencode: _opencode, Agent.aider: _aider, Agent.env: _env,
}  # fmt: skip
