"""OpenAI's embeddings: texts as vectors, as numbers or as base64 of little-endian float32."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from akashic_daemon.api.app_state import service_of
from akashic_daemon.api.body import parse, read_json
from akashic_daemon.api.border import json_response
from akashic_daemon.api.fields import ignored_header, without_nulls
from akashic_daemon.errors import BadRequest, Unsupported
from akashic_daemon.transcript.content import without_lone_surrogates

_MOST_TEXTS = 2048


class EmbeddingsRequest(BaseModel):
    """Body of /v1/embeddings."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None


def routes() -> list[Route]:
    """Return the route."""
    return [Route("/v1/embeddings", embeddings, methods=["POST"])]


async def embeddings(request: Request) -> Response:
    """Answer with a vector for each text."""
    service = service_of(request)
    body = parse(EmbeddingsRequest, without_nulls(await read_json(request)))
    done = await service.embeddings.embed(_texts(body.input), model=body.model, dimensions=body.dimensions)
    data = [
        {"object": "embedding", "index": index, "embedding": _coded(vector, body.encoding_format)}
        for index, vector in enumerate(done.vectors)
    ]
    usage = {"prompt_tokens": done.prompt_tokens, "total_tokens": done.prompt_tokens}
    headers = ignored_header(request, sorted(body.model_extra or ()))
    return json_response({"object": "list", "data": data, "model": done.model, "usage": usage}, headers=headers)


def _texts(given: str | list[Any]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not texts or len(texts) > _MOST_TEXTS:
        raise BadRequest(
            f"field 'input' has {len(texts)} texts", hint=f"send 1 to {_MOST_TEXTS:,} in a request", param="input"
        )
    for index, text in enumerate(texts):
        where = f"input[{index}]" if isinstance(given, list) else "input"
        if isinstance(text, int | list) and not isinstance(text, bool):
            raise Unsupported(
                f"field {where!r} is token ids: those of another tokenizer mean nothing here",
                hint="send texts (langchain: check_embedding_ctx_length=False)",
                param="input",
            )
        if not isinstance(text, str) or not text:
            said = "is empty" if text == "" else f"is no text but {type(text).__name__}"
            raise BadRequest(f"field {where!r} {said}", hint="send texts of at least one character", param="input")
    return [without_lone_surrogates(text) for text in texts]


def _coded(vector: NDArray[np.float32], form: str) -> list[float] | str:
    if form == "float":
        return [float(number) for number in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
