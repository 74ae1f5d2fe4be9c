"""Whether the daemon serves: it turns, its models are there, its tiers work, its port is free, its clients find it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from akashic_cli.client import Client, segment
from akashic_cli.doctor.finding import Finding, Level
from akashic_cli.render.units import size
from akashic_daemon import __version__
from akashic_daemon.config import load
from akashic_daemon.errors import AkashicError, DaemonNotRunning
from akashic_daemon.paths import Paths
from akashic_daemon.process.facts import code_digest
from akashic_daemon.protocol.native import ModelDetail, ModelList

CONNECT_TIMEOUT_S = 2.0

_OPERATIONS = {"drop": "Drop", "tail_gap": "Replace and tail drops", "repos": "Repos"}
"""Capabilities and the operations that need them."""
_RESTART = "`akashic daemon restart` starts what is installed here; nothing is lost"

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_URL_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")
_TOKEN_VARIABLES = {"OPENAI": ("OPENAI_API_KEY",), "ANTHROPIC": ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY")}


def check_daemon(paths: Paths) -> Finding:
    """Tell if the daemon runs, is of this version, and turns."""
    try:
        with Client(paths.socket) as client:
            status = client.handshake()
    except DaemonNotRunning:
        return Finding("daemon", Level.OK, "the daemon isn't running; the first command that needs it starts it")
    except AkashicError as error:
        return Finding("daemon", Level.FAIL, error.message, error.hint or "")
    if not status.healthy and status.engine.state != "loading":
        text = f"the daemon with pid {status.pid} is unhealthy: {status.health_detail or 'no reason given'}"
        return Finding("daemon", Level.FAIL, text, "`akashic daemon logs`, then `akashic daemon restart`")
    if status.version != __version__:
        text = f"the daemon with pid {status.pid} is version {status.version}, and this command {__version__}"
        return Finding("daemon", Level.WARN, text, _RESTART)
    if status.code != code_digest():
        text = f"the daemon with pid {status.pid} runs other code than is installed here, by the same version number"
        return Finding("daemon", Level.WARN, f"{text}: from before an upgrade, or of another installation", _RESTART)
    text = f"the daemon {status.version} runs with pid {status.pid}, model {status.engine.model or '-'}"
    if status.warnings:
        text = f"{text}; it warns: {'; '.join(status.warnings)}"
        return Finding("daemon", Level.WARN, text, "`akashic daemon logs` says more")
    if status.engine.state == "failed":
        text = f"{text} could not be loaded: {status.engine.detail or 'no reason given'}"
        return Finding("daemon", Level.FAIL, text, "`akashic model list`; `akashic config set model.default NAME`")
    return Finding("daemon", Level.OK, text)


def check_tiers(paths: Paths) -> Finding:
    """Tell which tiers below the engine work, and why not the others."""
    try:
        with Client(paths.socket) as client:
            report = client.handshake().tiers
    except AkashicError:
        return Finding("tiers", Level.OK, "the daemon isn't there to tell how its tiers are")
    if report.problems:
        return Finding("tiers", Level.WARN, "; ".join(report.problems), "`akashic cache tiers` shows what works")
    parts = [
        f"{t.tier} {size(t.used_bytes)} of {size(t.budget_bytes)}" if t.is_on else f"{t.tier} off"
        for t in report.tiers
        if t.tier != "gpu"
    ]
    return Finding("tiers", Level.OK, f"tiers below the engine: {', '.join(parts) or 'none'}")


def check_cache_editing(paths: Paths) -> Finding:
    """Tell which cache operations the loaded model allows, and why not the others."""
    try:
        with Client(paths.socket) as client:
            name = client.handshake().engine.model
            model = None if name is None else ModelDetail.model_validate(client.get(f"/models/{segment(name)}"))
    except AkashicError:
        model = None
    if model is None or not model.capabilities:
        return Finding("cache_editing", Level.OK, "no model is loaded, so what it allows isn't known yet")
    able = [word for key, word in _OPERATIONS.items() if model.capabilities.get(key)]
    unable = [f"no {word}: {model.why_not.get(key)}" for key, word in _OPERATIONS.items() if word not in able]
    text = f"{model.summary.name} allows {', '.join(able) or 'nothing'}"
    if unable:
        return Finding("cache_editing", Level.WARN, "; ".join([text, *unable]), "edits are computed anew instead")
    return Finding("cache_editing", Level.OK, text)


def check_port(paths: Paths) -> Finding:
    """Tell if the TCP port of the settings is free, or taken by our own daemon."""
    try:
        serve = load(paths.config_file).config.serve
    except AkashicError:
        return Finding("port", Level.WARN, "the TCP port wasn't looked at", "fix the settings first")
    try:
        with Client(paths.socket) as client:
            if (tcp := client.handshake().tcp) is not None:
                return Finding("port", Level.OK, f"the daemon serves TCP at {tcp}")
    except AkashicError:
        pass  # Reported by `check_daemon`; the port may still be tried.
    if serve.port == 0:
        to_do = "`akashic launch` opens it when a client needs it; `akashic config set serve.port 8642` always"
        return Finding("port", Level.OK, "TCP is off; the command line uses the Unix socket", to_do)
    try:
        with socket.create_server((serve.host, serve.port)):
            return Finding("port", Level.OK, f"{serve.host}:{serve.port} is free")
    except OSError as error:
        return Finding(
            "port",
            Level.FAIL,
            f"{serve.host}:{serve.port} can't be used: {error.strerror}",
            "stop what uses it, or `akashic config set serve.port` to another",
        )


def check_models(paths: Paths) -> list[Finding]:
    """Tell which registered models are gone, and which remote ones can't be asked."""
    try:
        with Client(paths.socket) as client:
            models = ModelList.model_validate(client.get("/models")).models
            remote = [ModelDetail.model_validate(client.get(f"/models/{segment(m.name)}")) for m in models if m.remote]
    except AkashicError:
        return [Finding("models", Level.OK, "the daemon isn't there to tell which models it knows")]
    out = [
        Finding(
            "models",
            Level.FAIL if model.default else Level.WARN,
            f"the model {model.name}: {model.problem} ({model.path})",
            f"put it back, or `akashic model rm {model.name}`",
        )
        for model in models
        if model.problem
    ]
    out += [found for model in remote if (found := _remote_problem(model)) is not None]
    return out or [Finding("models", Level.OK, f"models that are there: {', '.join(m.name for m in models)}")]


def _remote_problem(model: ModelDetail) -> Finding | None:
    name, parts = model.summary.name, urlsplit(model.summary.path)
    key = model.metadata.get("key", "none")
    if key.startswith("/"):
        try:
            mode = stat.S_IMODE(Path(key).stat().st_mode)
        except OSError as error:
            return Finding(
                "models", Level.FAIL, f"the key of {name}: {key}: {error.strerror}", "write it into that file"
            )
        if mode & 0o077:
            return Finding("models", Level.FAIL, f"the key of {name}: others may read {key}", f"chmod 600 {key}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        text = f"the server of {name}, {model.summary.path}, can't be reached: {error.strerror or error}"
        return Finding("models", Level.WARN, text, "start it, or register the model again with another --remote")
    return None


def check_clients(paths: Paths, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Tell which clients' variables lead to a place on this machine where the daemon isn't, or with another token."""
    wanted = [(n, environ[n]) for n in _URL_VARIABLES if environ.get(n)]
    wanted = [(name, url) for name, url in wanted if urlsplit(url).hostname in _LOOPBACK]
    if not wanted:
        return [Finding("clients", Level.OK, "no client is told by variables to use a server on this machine")]
    try:
        with Client(paths.socket) as client:
            tcp = client.handshake().tcp
    except AkashicError:
        tcp = None
    out = []
    for name, url in wanted:
        if tcp is None or urlsplit(url).port != urlsplit(tcp).port:
            where = f"the daemon serves at {tcp}" if tcp else "the daemon serves no TCP"
            to_do = f"`akashic launch env` {'prints' if tcp else 'opens a port and prints'} the right ones"
            out.append(Finding("clients", Level.WARN, f"{name} is {url}, but {where}", to_do))
        else:
            out += _wrong_paths(name, url)
    return out + _wrong_tokens(paths, environ, [name for name, _ in wanted]) or [
        Finding("clients", Level.OK, f"variables of clients lead here: {', '.join(name for name, _ in wanted)}")
    ]


def _wrong_paths(name: str, url: str) -> list[Finding]:
    """OpenAI's clients add their routes to .../v1, Anthropic's to the server itself."""
    path = urlsplit(url).path.rstrip("/")
    right = "" if name.startswith("ANTHROPIC") else "/v1"
    if path == right:
        return []
    mend = f"end it with {right}" if right else f"leave out {path}"
    return [Finding("clients", Level.WARN, f"{name} is {url}, where no route of that API is", mend)]


def _wrong_tokens(paths: Paths, environ: Mapping[str, str], wanted: Sequence[str]) -> list[Finding]:
    try:
        token = paths.token_file.read_text().strip()
        if load(paths.config_file).config.serve.insecure_no_auth:
            return []
    except (OSError, AkashicError):
        return []
    out = []
    for variable, keys in _TOKEN_VARIABLES.items():
        if any(name.startswith(variable) for name in wanted):
            said = [environ[key] for key in keys if environ.get(key)]
            if token not in said:
                text = f"{' or '.join(keys)} {'is another token' if said else 'is missing'}; the daemon will answer 401"
                out.append(Finding("clients", Level.WARN, text, f"it is in {paths.token_file}; `akashic launch env`"))
    return out
