"""Opening a model by itself, without a daemon: the one that a file, a registered name or the settings mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from akashic_daemon.config import Settings
from akashic_daemon.engine.host import KnownModel, embedded_model, find_model
from akashic_daemon.paths import find_paths

if TYPE_CHECKING:
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine

SEQUENCES = 64
"""Four variants run at a time; the rest are places on their older branches."""


def open_engine(known: KnownModel, settings: Settings, *, threads: int | None = None) -> LlamaCppEngine:
    """Load a model on llama.cpp as the settings say; so many threads whatever else runs, where `threads` is given."""
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    config = settings.config
    return LlamaCppEngine(
        LlamaCppOptions(
            name=known.name,
            path=known.path,
            window_tokens=config.model.window_tokens,
            kv_tokens=config.cache.kv_tokens,
            kv_type=config.model.kv_type,
            max_sequences=SEQUENCES,
            gpu_layers=config.model.gpu_layers,
            flash_attention=config.model.flash_attention,
            threads=config.schedule.threads if threads is None else threads,
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
    )


def known_model(name: str | None, settings: Settings) -> KnownModel:
    """Return the model of a file or Hugging Face folder, the registered one of that name, or the default one."""
    if name is not None and Path(name).is_file():
        path = Path(name).absolute()
        return KnownModel(path.stem, path, path.stat().st_size)
    if name is not None and (Path(name) / "config.json").is_file():
        path = Path(name).absolute()
        return KnownModel(path.name, path, sum(file.stat().st_size for file in path.iterdir() if file.is_file()))
    own = embedded_model()
    known = {} if own is None else {own.name: own}
    default = settings.config.model.default
    database = find_paths().database
    if database.exists() and (name is None or name not in known):
        from akashic_daemon.store.database import open_database
        from akashic_daemon.store.models import ModelRegistry

        store = open_database(database)
        try:
            rows = ModelRegistry(store).all()
        finally:
            store.close()
        known |= {row.name: KnownModel(row.name, Path(row.path), row.size_bytes) for row in rows}
        if settings.origin["model.default"] == "default":
            default = next((row.name for row in rows if row.is_default), default)
    return find_model(known, default if name is None else name)
