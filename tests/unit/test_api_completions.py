"""Text completions: several prompts side by side, echoes, and what is refused with a word on what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

import served_app
from akashic_daemon.errors import Overloaded
from akashic_daemon.schedule.events import GenerationEvent, GenerationInput
from echo_service import Caller, EchoService
from served_app import served

PATH = "/v1/completions"


def post(service: EchoService, body: Mapping[str, Any]) -> Caller:
    return served_app.post(service, body, PATH)


def chunks_of(caller: Caller) -> list[dict[str, Any]]:
    *events, done, end = caller.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("echo", [False, True])
def test_each_prompt_has_its_choice_in_order_and_usage_is_their_sum(home: Path, echo: bool) -> None:
    prompts = ["a b", "c", "d e f"]
    service = EchoService(home)
    body = json.loads(post(service, {"prompt": prompts, "echo": echo, "max_tokens": 9}).text)
    answers = ["a b ", "c ", "d e f "]
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert [c["text"] for c in body["choices"]] == [
        (prompt if echo else "") + answer for prompt, answer in zip(prompts, answers, strict=True)
    ]
    assert body["usage"] == {
        "prompt_tokens": 21, "completion_tokens": 6, "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 12}, "drop_skipped_tokens": 0, "repos_tokens": 0,
    }  # fmt: skip
    assert [block["reused_tokens"] for block in body["akashic"]["choices"]] == [4, 4, 4]
    assert [(r.text, r.max_tokens) for r in service.requests] == [(prompt, 9) for prompt in prompts]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompts", [["a b"], ["a b", "c", "d e f"]])
def test_a_stream_says_of_each_chunk_whose_it_is(home: Path, prompts: list[str], echo: bool) -> None:
    asked = {"prompt": prompts, "echo": echo, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage = chunks_of(post(EchoService(home), asked))
    said = dict.fromkeys(range(len(prompts)), "")
    ended = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in ended, "nothing comes after a choice's end"
        said[choice["index"]] += choice["text"]
        if choice["finish_reason"] is not None:
            assert chunk["akashic"]["reused_tokens"] == 4
            ended.append(choice["index"])
    whole = json.loads(post(EchoService(home), {"prompt": prompts, "echo": echo}).text)
    assert list(said.values()) == [choice["text"] for choice in whole["choices"]]
    assert sorted(ended) == list(range(len(prompts)))
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert usage["akashic"] == whole["akashic"]
    assert len({(c["id"], c["object"], c["model"]) for c in chunks}) == 1


class Uneven(EchoService):
    """Refuses the prompt `bad`; others begin and then wait for ever."""

    async def generate(self, request: GenerationInput) -> AsyncGenerator[GenerationEvent, None]:
        if request.text == "bad":
            await self.started.wait()
            raise Overloaded("the queue is full")
        try:
            async for event in super().generate(request):
                yield event
                await asyncio.Event().wait()
        finally:
            self.closed += 1


@pytest.mark.parametrize("stream", [False, True])
def test_when_one_prompt_fails_the_others_are_cancelled_and_its_error_is_told(home: Path, stream: bool) -> None:
    service = Uneven(home)
    caller = post(service, {"prompt": ["a", "bad", "c"], "stream": stream})
    assert "the queue is full" in caller.text
    assert caller.status == (503 if not stream else caller.status)
    assert service.closed == 2 * len(service.requests) == 4


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"suffix": "x"}, 400, "suffix.*fill-in-the-middle"),
        ({"logprobs": 0}, 400, "logprobs.*leave it out"),
        ({"logprobs": 5}, 400, "logprobs"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"best_of": 2}, 400, "best_of"),
        ({"n": 2}, 400, "'n'"),
        ({"prompt": []}, 400, "0 prompts"),
        ({"prompt": ["x"] * 129}, 400, "129 prompts"),
        ({"prompt": [1, 2, 3]}, 400, r"prompt\[0\]"),
        ({"prompt": ["x", [1]]}, 400, r"prompt\[1\]"),
        ({"prompt": 5}, 400, "prompt"),
        ({"prompt": ["x", "y"], "akashic": {"session": "s"}}, 400, "session 's'"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"suffix": ""}, 200, ""),
        ({"suffix": None, "logprobs": None}, 200, ""),
        ({"logprobs": False}, 200, ""),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_do(
    home: Path, fields: dict[str, Any], status: int, said: str
) -> None:
    service = EchoService(home)
    with served(service) as url, openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client:
        asked: Any = {"model": "m", "prompt": "x"}
        if status == 200:
            assert client.completions.create(**asked, extra_body=fields).choices[0].text == "x "
            return
        with pytest.raises(openai.BadRequestError, match=said):
            client.completions.create(**asked, extra_body=fields)
    assert service.requests == []
