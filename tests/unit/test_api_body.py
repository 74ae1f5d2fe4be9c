"""Bodies that are no request of their kind: what is wrong is named where it stands in what was sent."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from akashic_daemon.api.body import parse
from akashic_daemon.errors import BadRequest
from akashic_daemon.protocol.native import ForkRequest, TurnRequest
from akashic_daemon.protocol.openai import ChatCompletionRequest

TOLD = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("model", "sent", "field", "said"),
    [
        (ForkRequest, {"at_message": -1}, "at_message", "greater than or equal to 0"),
        (TurnRequest, {}, "prompt", "Field required"),
        (TurnRequest, {"prompt": "a", "memory": "x"}, "memory", "valid boolean"),
        (TurnRequest, {"prompt": "a", "memory": {"budget_tokens": "x"}}, "memory.budget_tokens", "valid integer"),
        (ChatCompletionRequest, {"messages": TOLD, "stop": ["a", 5]}, "stop.1", "valid string"),
        (ChatCompletionRequest, {"messages": TOLD, "n": 2, "user": 5}, "n", "should be 1"),
        (ChatCompletionRequest, {"messages": [5]}, "messages.0", "valid dictionary"),
        (ChatCompletionRequest, {"messages": TOLD, "akashic": {"sesion": "s"}}, "akashic.sesion", "not permitted"),
        (
            ChatCompletionRequest,
            {"messages": TOLD, "akashic": {"memory": {"namespaces": ["user", "nobody"]}}},
            "akashic.memory.namespaces.1",
            "match pattern",
        ),
    ],
)
def test_an_error_names_its_place_in_what_was_sent(
    model: type[BaseModel], sent: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(model, sent)
    assert refused.value.details["param"] == field
    assert said in refused.value.message
    assert refused.value.message.startswith(f"field {field!r}: ")
