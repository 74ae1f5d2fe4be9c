"""Vectors for texts, on a worker thread: the embedder is loaded when it is first asked for, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.memory import static_vectors
from akashic_daemon.memory.embedder import Embedder, Vectors, shortened


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector a text, float32 (texts, dimensions), at length 1; and how many tokens the texts had."""

    model: str
    vectors: Vectors
    prompt_tokens: int


class EmbeddingService:
    """The embedders that the daemon has: at present the one that comes with it."""

    def __init__(self, load: Callable[[], Embedder] = static_vectors.load) -> None:
        self._load = load
        self._loaded: Embedder | None = None
        self._loading = asyncio.Lock()

    def names(self) -> list[str]:
        """Return the names that requests may use; loads nothing."""
        return [static_vectors.NAME] if self._loaded is not None or static_vectors.folder() is not None else []

    async def embedder(self) -> Embedder:
        """Return the embedder, loading it the first time. Raises ModelError."""
        async with self._loading:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(self._load)
            return self._loaded

    async def embed(self, texts: Sequence[str], *, model: str, dimensions: int | None = None) -> Embedded:
        """Return vectors. Raises Unsupported for another model, BadRequest for more dimensions than there are."""
        if model != static_vectors.NAME:
            raise Unsupported(
                f"embedding texts with the model {model[:100]!r}: models that chat give no embeddings here",
                hint=f"use the model {static_vectors.NAME}",
                param="model",
            )
        embedder = await self.embedder()
        if dimensions is not None and dimensions > embedder.dimensions:
            raise BadRequest(
                f"field 'dimensions' is {dimensions}, and {model} has {embedder.dimensions}",
                hint=f"use 1 to {embedder.dimensions}",
                param="dimensions",
            )
        return await asyncio.to_thread(_embed, embedder, texts, dimensions)


def _embed(embedder: Embedder, texts: Sequence[str], dimensions: int | None) -> Embedded:
    ids = embedder.token_ids(texts)
    vectors = embedder.pool(ids)
    if dimensions is not None and dimensions < embedder.dimensions:
        vectors = shortened(vectors, dimensions)
    return Embedded(embedder.name, vectors, sum(map(len, ids)))
