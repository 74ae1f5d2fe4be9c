"""Models for people: the embedded one and the registered ones, what each can do, adding and removing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from akashic_daemon.config import Settings
from akashic_daemon.engine.base import Engine
from akashic_daemon.engine.gguf_header import GgufHeader
from akashic_daemon.engine.host import KnownModel, ModelHost, embedded_model, find_model
from akashic_daemon.engine.model_files import describe_model
from akashic_daemon.errors import BadRequest, Conflict, ModelError
from akashic_daemon.protocol import native
from akashic_daemon.remote.endpoint import Endpoint, parse_url
from akashic_daemon.store.models import ModelRegistry, ModelRow
from akashic_daemon.store.thread import StoreThread

_NAME = re.compile(r"(?!\.{1,2}\Z)[^/\x00-\x1f\x7f\ud800-\udfff]{1,128}")
"""A name is typed, and is a segment of a URL."""


class ModelService:
    """Async face of the model registry and of the loaded model."""

    def __init__(self, settings: Settings, registry: ModelRegistry, thread: StoreThread, host: ModelHost) -> None:
        self.settings = settings
        self._config = settings.config
        self._registry = registry
        self._thread = thread
        self._host = host
        self._own: KnownModel | None = None
        self._read: list[ModelRow] | None = None
        """The registry as it is; None when it has to be read. Only this object writes it."""

    async def _rows(self) -> list[ModelRow]:
        if self._read is None:
            self._read = list(await self._thread.run(self._registry.all))
        return self._read

    async def _known_models(self) -> dict[str, KnownModel]:
        known = {r.name: _known(r) for r in await self._rows()}
        if self._own is None:
            self._own = embedded_model()  # looks through folders, which is the larger part of a short request
        return known if self._own is None else {self._own.name: self._own, **known}

    async def _default_name(self) -> str:
        chosen = next((r.name for r in await self._rows() if r.is_default), None)
        explicit = self.settings.origin.get("model.default") != "default"
        return chosen if chosen and not explicit else self._config.model.default

    async def resolve(self, name: str | None) -> KnownModel:
        """Return the named model, the default one for None. Raises NotFound that lists the known ones."""
        name = await self._default_name() if name in (None, "", "default") else name
        assert name is not None
        return find_model(await self._known_models(), name)

    async def list(self) -> native.ModelList:
        """Return the registered models, each with its usable window; loads none."""
        default = await self._default_name()
        known = await self._known_models()
        models = [self._summary(m, default) for m in known.values()]
        for summary, model in zip(models, known.values(), strict=True):
            summary.window_tokens = await self._window_tokens(model)
        return native.ModelList(models=models)

    async def _window_tokens(self, model: KnownModel) -> int | None:
        """Return the longest context a model serves: exact when it is loaded, else by its header and the settings."""
        if model.remote is not None:
            return model.remote.window_tokens or None
        engine = self._host.peek(model)
        if engine is not None:
            return engine.model.window_tokens
        try:
            header = await asyncio.to_thread(describe_model, model.path)
        except ModelError:
            return None
        return self._planned_window(header) or None

    def _planned_window(self, header: GgufHeader) -> int:
        window = self._config.model.window_tokens or header.trained_window_tokens
        return min(window, self._config.cache.kv_tokens or window)

    def _summary(self, model: KnownModel, default: str) -> native.ModelSummary:
        return native.ModelSummary(
            name=model.name,
            path=_place(model),
            size_bytes=model.size_bytes,
            default=model.name == default,
            loaded=self._host.peek(model) is not None,
            embedded=model.embedded,
            remote=model.remote is not None,
            problem=None if model.remote is not None or model.path.exists() else "the file is gone",
        )

    async def get(self, name: str) -> native.ModelDetail:
        """Return one model: with its capabilities when it is loaded, else what its file's header says.

        Never loads it: that would throw away what the loaded model has computed.
        """
        model = await self.resolve(name)
        summary = self._summary(model, await self._default_name())
        if model.remote is not None:
            return _remote_detail(model.remote, summary)
        engine = await self._host.peek_settled(model)
        return await self._unloaded(model, summary) if engine is None else self._loaded(engine, summary)

    async def _unloaded(self, model: KnownModel, summary: native.ModelSummary) -> native.ModelDetail:
        try:
            header = await asyncio.to_thread(describe_model, model.path)
        except ModelError as error:
            summary.problem = error.message
            return native.ModelDetail(summary=summary)
        summary.window_tokens = self._planned_window(header) or None
        return native.ModelDetail(
            summary=summary,
            description=header.description,
            architecture=header.architecture,
            parameters_count=header.parameters_count,
            vocabulary_size=header.vocabulary_size,
            trained_window_tokens=header.trained_window_tokens,
            window_tokens=self._planned_window(header),
            has_chat_template=header.has_chat_template,
            metadata=dict(header.metadata),
        )

    def _loaded(self, engine: Engine, summary: native.ModelSummary) -> native.ModelDetail:
        info, able = engine.model, engine.capabilities
        summary.loaded, summary.window_tokens = True, info.window_tokens
        facts = (
            "drop",
            "repos",
            "tail_gap",
            "range_export",
            "segment_batch",
            "sparse_attention",
            "max_sequences",
            "kv_cells",
            "kv_types",
        )
        return native.ModelDetail(
            summary=summary,
            description=info.description,
            architecture=info.architecture,
            parameters_count=info.parameters_count,
            vocabulary_size=info.vocabulary_size,
            trained_window_tokens=info.trained_window_tokens,
            window_tokens=info.window_tokens,
            kv_bytes_per_token=info.kv_bytes_per_token,
            fingerprint=info.fingerprint,
            capabilities={key: getattr(able, key) for key in facts},
            why_not=able.why_not,
            has_chat_template=info.chat_template is not None,
            metadata=info.metadata,
        )

    async def add(self, request: native.AddModelRequest) -> native.ModelSummary:
        """Register a GGUF, a Hugging Face folder or a remote model.

        Raises BadModelFile when a file is missing, no model or cut off. A remote server needn't run yet.
        """
        if request.remote is not None:
            return await self._add_remote(request, request.remote)
        path = Path(request.path)
        if not path.is_absolute():
            raise BadRequest(f"the model's path {request.path!r} is not absolute", hint="send the whole path")
        size_bytes = (await asyncio.to_thread(describe_model, path)).size_bytes
        name = self._checked(request.name or (path.name if path.is_dir() else path.stem))
        mtime_ns = path.stat().st_mtime_ns
        await self._thread.run(lambda: self._registry.add(name, str(path), size_bytes, mtime_ns, request.default))
        self._read = None
        return await self._added(name)

    async def _add_remote(self, request: native.AddModelRequest, asked: native.RemotePlace) -> native.ModelSummary:
        for field, text in (
            ("url", asked.url),
            ("model", asked.model),
            ("key_env", asked.key_env),
            ("key_file", asked.key_file),
        ):
            if not text.isprintable():
                raise BadRequest(
                    f"adding a remote model: its {field} {text!r} can't be written", hint="send printable characters"
                )
        endpoint = Endpoint(
            parse_url(asked.url), asked.model, asked.window_tokens, asked.key_env, asked.key_file, asked.passes_ops,
            asked.session_header,
        )  # fmt: skip
        if endpoint.key_env and endpoint.key_file:
            raise BadRequest("a remote model with two keys", hint="leave out key_env or key_file")
        if endpoint.key_file and not Path(endpoint.key_file).is_absolute():
            raise BadRequest(f"the key file {endpoint.key_file!r} is not absolute", hint="send the whole path")
        name = self._checked(request.name or endpoint.model.rsplit("/", 1)[-1] or "remote")
        await asyncio.to_thread(endpoint.key)
        await self._thread.run(
            lambda: self._registry.add(name, endpoint.url, 0, 0, request.default, endpoint.to_json())
        )
        self._read = None
        return await self._added(name)

    async def _added(self, name: str) -> native.ModelSummary:
        model = (await self._known_models())[name]
        summary = self._summary(model, await self._default_name())
        summary.window_tokens = await self._window_tokens(model)
        return summary

    def _checked(self, name: str) -> str:
        """Return a name that may be registered. Raises BadRequest and Conflict."""
        if not _NAME.fullmatch(name) or name == "default":
            raise BadRequest(
                f"{name!r} can't name a model", hint="choose another with --name: printable, without /, not `default`"
            )
        own = embedded_model()
        if own is not None and name == own.name:
            raise Conflict(f"{name!r} is the embedded model's name", hint="choose another with --name")
        return name

    async def remove(self, name: str) -> native.RemovedModel:
        """Forget a registration; the file stays."""
        model = find_model(await self._known_models(), name)
        if model.embedded:
            raise Conflict(f"{name!r} ships with akashic and can't be removed", hint="choose another default instead")
        await self._thread.run(lambda: self._registry.remove(name))
        self._read = None
        return native.RemovedModel(name=name, path=_place(model))


def _known(row: ModelRow) -> KnownModel:
    remote = None if row.remote is None else Endpoint.from_json(row.remote)
    return KnownModel(row.name, Path(row.path), row.size_bytes, remote=remote)


def _place(model: KnownModel) -> str:
    return str(model.path) if model.remote is None else model.remote.url


def _remote_detail(endpoint: Endpoint, summary: native.ModelSummary) -> native.ModelDetail:
    """Describe a model of another server; asks nobody, for the server may be away."""
    summary.window_tokens = endpoint.window_tokens or None
    key = f"in ${endpoint.key_env}" if endpoint.key_env else endpoint.key_file or "none"
    said = {
        "model there": endpoint.model or "the only one it serves", "key": key,
        "session header": endpoint.session_header or "none",
    }  # fmt: skip
    how = (
        "passed on to the server" if endpoint.passes_ops else "applied to the text; the server's cache can't be edited"
    )
    return native.ModelDetail(
        summary=summary, description="computed by another server", window_tokens=endpoint.window_tokens,
        why_not={} if endpoint.passes_ops else {"drop": how, "repos": how}, metadata=said,
    )  # fmt: skip
