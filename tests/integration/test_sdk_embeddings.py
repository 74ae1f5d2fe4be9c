"""The `openai` package asks for embeddings, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from akashic_daemon.api.app import create_app
from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.memory.static_vectors import folder
from echo_service import EchoService
from fake_service import running_service
from served_app import served

pytestmark = pytest.mark.skipif(folder() is None, reason="the package wordllama is not installed")


@pytest.fixture
def client(home: Path) -> Iterator[openai.OpenAI]:
    with (
        served(EchoService(home)) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as made,
    ):
        yield made


def test_a_batch_has_a_vector_of_length_one_for_each_text_in_both_encodings(client: openai.OpenAI) -> None:
    texts = ["the cat sat on the mat", "é 漢字", "x"]
    coded = client.embeddings.create(model="wordllama", input=texts)
    plain = client.embeddings.create(model="wordllama", input=texts, encoding_format="float")
    assert [d.index for d in coded.data] == [0, 1, 2]
    for one, other in zip(coded.data, plain.data, strict=True):
        assert len(one.embedding) == 256
        assert one.embedding == pytest.approx(other.embedding)
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-5)
    assert coded.usage.prompt_tokens == coded.usage.total_tokens == plain.usage.prompt_tokens > 3
    alone = client.embeddings.create(model="wordllama", input=texts[0])
    assert alone.data[0].embedding == coded.data[0].embedding


def test_fewer_dimensions_may_be_asked_for_and_more_are_refused(client: openai.OpenAI) -> None:
    short = client.embeddings.create(model="wordllama", input="hello", dimensions=64).data[0].embedding
    assert len(short) == 64
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-5)
    with pytest.raises(openai.BadRequestError, match=r"dimensions.*257.*256"):
        client.embeddings.create(model="wordllama", input="hello", dimensions=257)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="wordllama", input="hello", dimensions=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "'input' is empty"),
        (["a", ""], r"'input\[1\]' is empty"),
        ([], "0 texts"),
        (["a"] * 2049, "2049 texts"),
        ([1, 2, 3], "token ids"),
        ([[1, 2], [3]], "token ids"),
        ([None], r"'input\[0\]' is no text"),
        ([True], r"'input\[0\]' is no text"),
        ([{"a": 1}], r"'input\[0\]' is no text"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(client: openai.OpenAI, given: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client.embeddings.create(model="wordllama", input=given)


def test_another_model_is_refused_with_the_one_to_use(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"text-embedding-3-small.*use the model wordllama"):
        client.embeddings.create(model="text-embedding-3-small", input="hello")


def test_half_a_surrogate_pair_is_embedded_as_the_character_that_stands_for_it(home: Path) -> None:
    with served(EchoService(home)) as url:
        bodies = (b'{"model": "wordllama", "input": "a\\ud800"}', b'{"model": "wordllama", "input": "a\\ufffd"}')
        both = [httpx.post(url + "/v1/embeddings", content=body, timeout=60).json()["data"] for body in bodies]
    assert both[0] == both[1]


def test_the_embedder_is_listed_among_the_models_after_those_that_chat(home: Path) -> None:
    async def check() -> None:
        async with running_service(home, lambda _n, _p: FakeEngine()) as service:
            transport = httpx.ASGITransport(create_app(service, token=None), client=("127.0.0.1", 5))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
                names = [m["id"] for m in (await client.get("/v1/models")).json()["data"]]
                assert "fake" in names[:-1]
                assert names[-1] == "wordllama"
                assert (await client.get("/v1/models/wordllama")).json()["id"] == "wordllama"

    asyncio.run(check())
