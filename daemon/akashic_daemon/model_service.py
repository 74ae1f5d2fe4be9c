"""Models for people: the embedded one and the registered ones, what each can do, adding and removing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from akashic_daemon.config import Settings
from akashic_daemon.engine.host import KnownModel, ModelHost, embedded_model, find_model
from akashic_daemon.errors import BadRequest, Conflict
from akashic_daemon.protocol import native
from akashic_daemon.store.models import ModelRegistry
from akashic_daemon.store.thread import StoreThread


class ModelService:
    """Async face of the model registry and of the loaded model."""

    def __init__(self, settings: Settings, registry: ModelRegistry, thread: StoreThread, host: ModelHost) -> None:
        self.settings = settings
        self._config = settings.config
        self._registry = registry
        self._thread = thread
        self._host = host

    async def _known_models(self) -> dict[str, KnownModel]:
        rows = await self._thread.run(self._registry.all)
        known = {r.name: KnownModel(r.name, Path(r.path), r.size_bytes) for r in rows}
        own = embedded_model()
        return known if own is None else {own.name: own, **known}

    async def _default_name(self) -> str:
        rows = await self._thread.run(self._registry.all)
        chosen = next((r.name for r in rows if r.is_default), None)
        explicit = self.settings.origin.get("model.default") != "default"
        return chosen if chosen and not explicit else self._config.model.default

    async def resolve(self, name: str | None) -> KnownModel:
        """Return the named model, the default one for None. Raises NotFound that lists the known ones."""
        name = await self._default_name() if name in (None, "", "default") else name
        assert name is not None
        return find_model(await self._known_models(), name)

    async def list(self) -> native.ModelList:
        """Return the registered models."""
        default = await self._default_name()
        known = await self._known_models()
        return native.ModelList(models=[self._summary(m, default) for m in known.values()])

    def _summary(self, model: KnownModel, default: str) -> native.ModelSummary:
        return native.ModelSummary(
            name=model.name,
            path=str(model.path),
            size_bytes=model.size_bytes,
            default=model.name == default,
            loaded=model.name == self._host.loaded,
            embedded=model.embedded,
            problem=None if model.path.is_file() else "the file is gone",
        )

    async def get(self, name: str) -> native.ModelDetail:
        """Return one model with its capabilities; loads it, for only the engine knows them."""
        model = await self.resolve(name)
        engine = await self._host.acquire(model)
        await self._host.release()
        info, able = engine.model, engine.capabilities
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
            summary=self._summary(model, await self._default_name()),
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
        """Register a GGUF. Raises ModelError when the file is missing or no GGUF."""
        from akashic_daemon.engine.llama_cpp.model_file import check_gguf

        path = Path(request.path)
        if not path.is_absolute():
            raise BadRequest(f"the model's path {request.path!r} is not absolute", hint="send the whole path")
        size_bytes = await asyncio.to_thread(check_gguf, path)
        name = request.name or path.stem
        own = embedded_model()
        if own is not None and name == own.name:
            raise Conflict(f"{name!r} is the embedded model's name", hint="choose another with --name")
        mtime_ns = path.stat().st_mtime_ns
        await self._thread.run(lambda: self._registry.add(name, str(path), size_bytes, mtime_ns, request.default))
        return self._summary((await self._known_models())[name], await self._default_name())

    async def remove(self, name: str) -> native.RemovedModel:
        """Forget a registration; the file stays."""
        model = find_model(await self._known_models(), name)
        if model.embedded:
            raise Conflict(f"{name!r} ships with akashic and can't be removed", hint="choose another default instead")
        await self._thread.run(lambda: self._registry.remove(name))
        return native.RemovedModel(name=name, path=str(model.path))
