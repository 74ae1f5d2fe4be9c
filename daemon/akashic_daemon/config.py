"""Settings: one frozen model, its defaults, and where each value came from.

Precedence: command-line flag > `AKASHIC_<SECTION>_<KEY>` > config.toml > default. An unknown key is an error that
names the nearest valid one. Only this module and `paths` read the environment.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from akashic_daemon.errors import ConfigError
from akashic_daemon.types import NAMESPACE_PATTERN

_NON_SETTINGS = frozenset({"AKASHIC_HOME", "AKASHIC_LOG_LEVEL"})
"""Environment names with our prefix that aren't settings."""
LOG_LEVELS = ("debug", "info", "warning", "error")


_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"TB": 10**12, "B": 1}
_BY_LOWER_CASE = {unit.lower(): size for unit, size in _UNITS.items()}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")


def parse_size(value: object) -> int | Literal["auto"]:
    """Return a size in bytes, or "auto". Raises ValueError that says how sizes are written."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text.lower() == "auto":
        return "auto"
    match = _SIZE.fullmatch(text)
    unit = _BY_LOWER_CASE.get(match[2].lower() or "b") if match else None
    if match is None or unit is None or (unit == 1 and "." in match[1]):
        raise ValueError(
            'no size: write "auto", 0, a number of bytes, or one with KiB, MiB, GiB, TiB (powers of 1024) '
            "or kB, MB, GB, TB (powers of 1000)"
        )
    return int(Decimal(match[1]) * unit)


def size_text(size: int | str) -> str | int:
    """Return a size as people write it, exactly: the shortest form that `parse_size` reads as the same."""
    if isinstance(size, str) or size == 0:
        return size
    forms = [f"{size // unit}{name}" for name, unit in _UNITS.items() if size % unit == 0 and unit > 1]
    return min(forms, key=len, default=size)


Size = Annotated[int | Literal["auto"], BeforeValidator(parse_size), PlainSerializer(size_text)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(_Section):
    """Which model is loaded and how."""

    default: str = Field(
        "smollm2", description="Name of the model used when a request names none; see `akashic model list`."
    )
    window_tokens: int = Field(
        0, ge=0, description="Longest prompt plus answer; 0 means the model's trained window. More costs KV memory."
    )
    gpu_layers: int = Field(
        -1, ge=-1, description="Layers kept on the GPU; -1 means all that the build supports, 0 none."
    )
    engine: Literal["auto", "llama_cpp", "torch"] = Field(
        "auto", description="What computes: auto is llama.cpp for GGUFs and torch for Hugging Face folders."
    )
    torch_devices: str = Field(
        "auto",
        description="Torch engine: devices that share the layers, e.g. cuda:0,cuda:1. auto: the first GPU, further ones when it is "
        "too small, else the CPU.",
    )
    sparse_blocks: int = Field(
        0,
        ge=0,
        le=1024,
        description="Torch engine: pages of 128 tokens that each KV head reads for a new token; 0 reads all, which is exact.",
    )
    kv_type: Literal["f16", "f32", "q8_0"] = Field(
        "f16", description="Type of keys and values. q8_0 halves memory; f32 doubles it and is exact."
    )
    flash_attention: Literal["auto", "on", "off"] = Field(
        "auto",
        description="llama.cpp's fused attention; auto uses it on a GPU only: on CPUs it decodes long contexts more slowly.",
    )


class CacheSection(_Section):
    """How much KV stays computed."""

    kv_tokens: int = Field(
        0,
        ge=0,
        description="KV cells held by the engine, shared by all sessions; 0 means four windows, at most a quarter of RAM.",
    )
    gpu_kv_tokens: int = Field(
        0,
        ge=0,
        description="Torch engine: KV stands in RAM, and the GPU's part of it takes the room of so many tokens; 0: all on the GPU. "
        "With model.sparse_blocks a new token fetches what lacks, without it everything.",
    )
    max_sequences: int = Field(
        128, ge=2, le=224, description="Branches that may be resident at once. More costs a little bookkeeping."
    )
    ram_bytes: Size = Field(
        "auto",
        description="Size of the RAM tier, e.g. 4GiB or 500MB; 0 for none. auto: an eighth of the memory, at most 8GiB.",
    )
    ssd_bytes: Size = Field(
        "auto",
        description="Size of the SSD tier, which survives restarts; 0 for none. auto: a tenth of the free disk, at most 32GiB.",
    )
    ssd_daily_write_bytes: Size = Field(
        "auto",
        description="Most that is written to the SSD tier in a day; more wears the disk. 0 writes nothing. auto: 4 x ssd_bytes.",
    )
    kv_storage: Literal["as_computed", "q8"] = Field(
        "as_computed",
        description="How KV is kept outside of the engine. q8 halves its bytes, and changes its values a little. KV kept the other way is not used.",
    )
    policy: str = Field(
        "none", description="Cache policy of API requests that name none, e.g. tool-rolling-drop:keep=4."
    )
    edit_reuse: Literal["exact", "drop"] = Field(
        "exact",
        description="What an edited history becomes: computed again from the edit on, or cache operations that keep later KV.",
    )
    volatile_text: str = Field(
        "",
        description="Regular expression of text that always changes (a date, a nonce); with edit_reuse=drop it is ignored.",
    )

    volatile_lines: str = Field(
        "x-anthropic-billing-header:",
        description="Regular expression of how lines of system messages begin that change with each request; they are left out, and a note says so.",
    )

    tool_order: Literal["as_sent", "canonical"] = Field(
        "as_sent",
        description="Order of tools and of their properties in the prompt: as the request has it, or by name (for clients that shuffle them).",
    )

    @field_validator("volatile_text", "volatile_lines")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        try:
            re.compile(value, re.MULTILINE)
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return value


class ScheduleSection(_Section):
    """How requests share the engine."""

    max_running: int = Field(16, ge=1, le=64, description="Requests decoded together; others wait in a fair queue.")
    max_queued: int = Field(256, ge=1, description="Requests that may wait; one more is refused with 503.")
    prefill_tokens: int = Field(
        512, ge=16, le=4096, description="Most prompt tokens in one step when nobody is streaming."
    )
    prefill_tokens_busy: int = Field(
        256,
        ge=1,
        le=4096,
        description="Most prompt tokens in one step beside running streams; so many fewer that a step takes at most about twice as long.",
    )
    threads: int = Field(0, ge=0, description="CPU threads; 0 follows the load of the other programs on the machine.")


class RemoteSection(_Section):
    """How long other servers may take that compute remote models."""

    connect_s: float = Field(5.0, gt=0, description="Longest wait for a connection to a remote server.")
    first_token_s: float = Field(600.0, gt=0, description="Longest wait for the first piece of a remote answer.")
    silence_s: float = Field(120.0, gt=0, description="Longest pause within a remote answer.")
    retry_s: float = Field(
        15.0, ge=0, description="How long a remote server that is away or overloaded is asked again, pauses included."
    )


class ServeSection(_Section):
    """Where the daemon listens, besides its Unix socket."""

    host: str = Field("127.0.0.1", description="Loopback address for TCP; used only when port is set.")
    port: int = Field(0, ge=0, le=65535, description="TCP port; 0 means Unix socket only.")
    insecure_no_auth: bool = Field(
        False, description="Serve TCP without the bearer token. Any local user can then read your sessions."
    )
    idle_exit_s: int = Field(0, ge=0, description="Stop by itself after so many idle seconds; 0 never.")


class ChatSection(_Section):
    """Defaults of `akashic chat`."""

    temperature: float = Field(0.7, ge=0, le=10, description="Sampling temperature; 0 is greedy.")
    max_tokens: int = Field(512, ge=1, description="Longest answer.")
    policy: str = Field(
        "tool-rolling-drop",
        description="Cache policy of new turns of `akashic chat`; none keeps everything, as remote models do unless the session has a policy.",
    )
    system: str = Field("", description="System message of new sessions; empty uses the template's own.")


class MemorySection(_Section):
    """Long-term memory."""

    chat: bool = Field(
        True,
        description="Whether turns of `akashic chat` recall what was said earlier, and are remembered when their session is over.",
    )
    api: bool = Field(
        False, description="Whether API requests do that when they don't say (request field akashic.memory)."
    )
    namespace: str = Field(
        "user", description="Where is remembered and recalled from unless something else is named, e.g. project:tea."
    )
    budget_tokens: int = Field(
        1536, ge=64, description="Most tokens of recalled text before a question; more tells more and costs prefill."
    )
    finished_after_s: int = Field(
        900, ge=1, description="A session that was quiet for so long is over, and goes into memory."
    )
    compactor: str = Field(
        "extractive",
        description="What compacts memory: extractive needs no model; model is the loaded one, in the background; or the base URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8080/v1.",
    )
    compactor_model: str = Field(
        "", description="Name of the compacting model; empty is the one that is loaded. A server's must be named."
    )

    @field_validator("namespace")
    @classmethod
    def _is_a_namespace(cls, value: str) -> str:
        if not re.fullmatch(NAMESPACE_PATTERN, value):
            raise ValueError("no namespace: write user, project:NAME or session:NAME")
        return value

    @field_validator("compactor")
    @classmethod
    def _is_a_compactor(cls, value: str) -> str:
        if value not in {"extractive", "model"} and not re.fullmatch(r"https?://[^\s/]+\S*", value):
            raise ValueError('no compactor: write "extractive", "model" or the base URL of a server')
        return value

    @model_validator(mode="after")
    def _server_has_a_model(self) -> Self:
        if self.compactor.startswith("http") and not self.compactor_model:
            raise ValueError("a server compacts: set memory.compactor_model to the model that it is to use")
        return self


class Config(BaseModel):
    """All settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSection = ModelSection()
    cache: CacheSection = CacheSection()
    schedule: ScheduleSection = ScheduleSection()
    remote: RemoteSection = RemoteSection()
    serve: ServeSection = ServeSection()
    chat: ChatSection = ChatSection()
    memory: MemorySection = MemorySection()


def setting_names() -> list[str]:
    """Return every `section.key`."""
    return [f"{s}.{k}" for s, f in Config.model_fields.items() for k in f.annotation.model_fields]  # type: ignore[union-attr]


def _unknown(name: str, where: str) -> ConfigError:
    near = difflib.get_close_matches(name, setting_names(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`akashic config show` lists all settings"
    return ConfigError(f"unknown setting {name!r}, from {where}", hint=hint)


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"reading {path}: {error}", hint="fix or remove the file") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"reading {path}: {error}", hint="fix that line of TOML") from error
    names = set(setting_names())
    flat: dict[str, Any] = {}
    for section, body in data.items():
        if not isinstance(body, dict):
            raise _unknown(section, str(path))
        for key, value in body.items():
            if f"{section}.{key}" not in names:
                raise _unknown(f"{section}.{key}", str(path))
            flat[f"{section}.{key}"] = value
    return flat


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    by_env = {"AKASHIC_" + n.replace(".", "_").upper(): n for n in setting_names()}
    flat: dict[str, Any] = {}
    for key, value in env.items():
        if not key.startswith("AKASHIC_") or key in _NON_SETTINGS:
            continue
        if key not in by_env:
            near = difflib.get_close_matches(key, by_env, n=1, cutoff=0.5)
            raise ConfigError(
                f"unknown setting {key!r} in the environment",
                hint=f"did you mean {near[0]!r}?" if near else "unset it",
            )
        flat[by_env[key]] = value
    return flat


def log_level(env: Mapping[str, str] | None = None) -> str:
    """Return how much the daemon logs, from AKASHIC_LOG_LEVEL. Raises ConfigError for a level that doesn't exist."""
    given = (os.environ if env is None else env).get("AKASHIC_LOG_LEVEL") or "info"
    if given.lower() not in LOG_LEVELS:
        raise ConfigError(f"AKASHIC_LOG_LEVEL is {given!r}", hint=f"use one of {', '.join(LOG_LEVELS)}")
    return given.upper()


class Settings(BaseModel):
    """A loaded configuration and the origin (`flag`, `env`, `file`, `default`) of each `section.key`."""

    model_config = ConfigDict(frozen=True)

    config: Config
    origin: dict[str, str]


def load(
    path: Path,
    *,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the settings. Raises ConfigError, naming the setting and where it stands."""
    env = os.environ if env is None else env
    origin = dict.fromkeys(setting_names(), "default")
    nested: dict[str, dict[str, Any]] = {}
    layers = (("file", _from_toml(path)), ("env", _from_env(env)), ("flag", dict(flags or {})))
    places = {"file": str(path), "env": "the environment", "flag": "the command line"}
    for source, flat in layers:
        for name, value in flat.items():
            if name not in origin:
                raise _unknown(name, places[source])
            if value is None:
                continue
            section, key = name.split(".", 1)
            nested.setdefault(section, {})[key] = value
            origin[name] = source
    try:
        config = Config.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(p) for p in first["loc"])
        where = places.get(origin.get(name, ""), str(path))
        raise ConfigError(
            f"the setting {name}, from {where}: {first['msg']}, got {first.get('input')!r}",
            hint="`man akashic-config` says what it may be",
        ) from error
    return Settings(config=config, origin=origin)
