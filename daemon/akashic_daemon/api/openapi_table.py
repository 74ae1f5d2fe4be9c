"""What each route reads and writes, for `openapi`: a row for each method and path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from akashic_daemon.api.embeddings import EmbeddingsRequest
from akashic_daemon.protocol import (
    anthropic,
    completions,
    context,
    memory,
    memory_watch,
    native,
    openai,
    responses,
    tiers,
)

Shape = type[BaseModel] | str
"""A wire model, or the name of one of SHAPES."""
_EVENTS = ("text/event-stream",)
_LINES = ("application/x-ndjson",)


@dataclass(frozen=True, slots=True)
class Operation:
    """A row. line: one line of a stream of NDJSON. about: what the answer is, where its shape doesn't say so."""

    answer: Shape | None = None
    body: type[BaseModel] | None = None
    status: int = 200
    streams: tuple[str, ...] = ()
    line: type[BaseModel] | None = None
    upload: bool = False
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    about: str = ""
    other_answers: Mapping[str, str] = field(default_factory=dict)


def _lines(line: type[BaseModel], **more: Any) -> Operation:
    return Operation(streams=_LINES, line=line, **more)


_P = "/akashic/v1"
_S = f"{_P}/sessions/{{session}}"
_TEXT: dict[str, Any] = {"type": "string"}
_SWITCH: dict[str, Any] = {"enum": ["0", "1"], "default": "0"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10**12 - 1}

_NATIVE: dict[tuple[str, str], Operation] = {
    ("GET", "/healthz"): Operation("Health", other_answers={"503": "Health"}),
    ("GET", "/metrics"): Operation(
        streams=("text/plain; version=0.0.4; charset=utf-8",), about="Prometheus' text format."
    ),
    ("GET", "/openapi.json"): Operation("Document"),
    ("GET", f"{_P}/status"): Operation(native.Status),
    ("POST", f"{_P}/listen"): Operation(native.Listening, native.ListenRequest),
    ("GET", f"{_P}/stats"): Operation(native.Stats),
    ("GET", f"{_P}/stats/stream"): _lines(
        native.Stats, query={"interval_s": {"type": "number", "default": 1}}, about="A line each interval, without end."
    ),
    ("POST", f"{_P}/import"): _lines(
        native.ImportEvent, upload=True, query={"format": _TEXT, "name": _TEXT, "file": _TEXT}
    ),
    ("GET", f"{_P}/sessions"): Operation(native.SessionList),
    ("GET", _S): Operation(native.SessionDetail),
    ("DELETE", _S): Operation(native.RemovedSession),
    ("POST", f"{_S}/fork"): Operation(native.SessionSummary, native.ForkRequest, 201),
    ("GET", f"{_S}/export"): Operation(
        streams=(*_LINES, "application/octet-stream"), query={"kv": _SWITCH}, about="A message a line; or one file."
    ),
    ("POST", f"{_S}/turn"): _lines(native.TurnEvent, body=native.TurnRequest),
    ("GET", f"{_P}/models"): Operation(native.ModelList),
    ("POST", f"{_P}/models"): Operation(native.ModelSummary, native.AddModelRequest, 201),
    ("GET", f"{_P}/models/{{name}}"): Operation(native.ModelDetail),
    ("DELETE", f"{_P}/models/{{name}}"): Operation(native.RemovedModel),
    ("GET", f"{_S}/context"): Operation(context.ContextView),
    ("POST", f"{_S}/ops"): Operation(context.OpsResult, context.OpsRequest),
    ("POST", f"{_S}/messages"): Operation(context.ContextView, context.AppendRequest),
    ("PUT", f"{_S}/policy"): Operation(context.ContextView, context.PolicyRequest),
    ("PUT", f"{_S}/edit_reuse"): Operation(context.ContextView, context.EditReuseRequest),
    ("POST", f"{_S}/script"): _lines(context.ScriptEvent, body=context.ScriptRequest),
    ("GET", f"{_S}/explain"): Operation(context.Explanation, query={"turn": _COUNT}),
    ("GET", f"{_P}/cache/tree"): Operation(context.CacheTree, query={"depth": _COUNT}),
    ("GET", f"{_P}/policies"): Operation(context.PolicyList),
    ("GET", f"{_P}/cache/tiers"): Operation(tiers.TierReport),
    ("GET", f"{_P}/cache/verify"): _lines(native.StoreReport, query={"fix": _SWITCH}),
    ("POST", f"{_P}/cache/prune"): _lines(tiers.Pruned, body=tiers.PruneRequest),
    ("POST", f"{_S}/prefetch"): _lines(tiers.Prefetched),
    ("POST", f"{_S}/hint"): Operation(tiers.Hinted, tiers.HintRequest),
    ("POST", f"{_P}/memory/watch"): _lines(memory_watch.WatchEvent, body=memory_watch.WatchRequest),
}
_M = f"{_P}/memory"
_SPACES: dict[str, Any] = {"type": "array", "items": _TEXT}
_MEMORY: dict[tuple[str, str], Operation] = {
    ("GET", _M): Operation(memory.MemoryStats),
    ("POST", f"{_M}/turns"): Operation(memory.Remembered, memory.AddRequest),
    ("POST", f"{_M}/sessions/{{session}}"): _lines(memory.Remembered, body=memory.RememberRequest),
    ("POST", f"{_M}/search"): Operation(memory.SearchResult, memory.SearchRequest),
    ("GET", f"{_M}/chunks"): Operation(memory.ChunkList, query={"namespace": _SPACES, "session": _TEXT}),
    ("GET", f"{_M}/chunks/{{id}}"): Operation(memory.ChunkCard),
    ("GET", f"{_M}/history/{{id}}"): Operation(memory.History),
    ("POST", f"{_M}/keep-both"): Operation(memory.History, memory.KeepBothRequest),
    ("POST", f"{_M}/forget"): _lines(memory.Forgotten, body=memory.ForgetRequest),
    ("POST", f"{_M}/compact"): _lines(memory.MemoryStats),
    ("GET", f"{_M}/export"): Operation(streams=_LINES, query={"namespace": _SPACES}, about="A turn a line."),
    ("POST", f"{_M}/import"): _lines(memory.Remembered, upload=True),
}
_FOREIGN: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/models"): Operation("Models"),
    ("GET", "/v1/models/{name:path}"): Operation("Model"),
    ("POST", "/v1/chat/completions"): Operation("Chat", openai.ChatCompletionRequest, streams=_EVENTS),
    ("POST", "/v1/completions"): Operation("Completion", completions.CompletionRequest, streams=_EVENTS),
    ("POST", "/v1/embeddings"): Operation("Embeddings", EmbeddingsRequest),
    ("POST", "/v1/messages"): Operation("Message", anthropic.MessagesRequest, streams=_EVENTS),
    ("POST", "/v1/messages/count_tokens"): Operation("InputTokens", anthropic.CountTokensRequest),
    ("POST", "/v1/responses"): Operation("Response", responses.ResponseRequest, streams=_EVENTS),
    ("POST", "/v1/responses/input_tokens"): Operation("InputTokens", responses.CountInputRequest),
    ("GET", "/v1/responses/{id}"): Operation("Response"),
    ("DELETE", "/v1/responses/{id}"): Operation("Deleted"),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "List", query={"order": {"enum": ["asc", "desc"], "default": "desc"}}
    ),
}
OPERATIONS: Mapping[tuple[str, str], Operation] = {**_NATIVE, **_MEMORY, **_FOREIGN}
"""By method and the route's path as Starlette has it."""


def _object(required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has at least these fields, named in one text."""
    return {"type": "object", "required": required.split(), "properties": properties}


_LIST: dict[str, Any] = {"type": "array"}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_USAGE = _object(
    "prompt_tokens completion_tokens total_tokens prompt_tokens_details",
    prompt_tokens_details=_object("cached_tokens", cached_tokens=_NUMBER),
)
_ANTHROPIC_USAGE = _object("input_tokens output_tokens cache_read_input_tokens cache_creation_input_tokens")
SHAPES: Mapping[str, dict[str, Any]] = {
    "Health": _object("healthy detail", healthy={"type": "boolean"}),
    "Document": _object("openapi info paths"),
    "Models": _object("data", data=_LIST),
    "Model": _object("id"),
    "Chat": _object("id object created model choices usage akashic", choices=_LIST, usage=_USAGE),
    "Completion": _object("id object created model choices usage akashic", choices=_LIST, usage=_USAGE),
    "Embeddings": _object("object data model usage", data=_LIST),
    "Message": _object("id type role model content stop_reason usage akashic", content=_LIST, usage=_ANTHROPIC_USAGE),
    "InputTokens": _object("input_tokens", input_tokens=_NUMBER),
    "Response": _object("id object created_at model output status usage", output=_LIST),
    "Deleted": _object("id object deleted"),
    "List": _object("object data has_more", data=_LIST),
    "OpenAIError": _object("error", error=_object("message type code param", message=_TEXT)),
    "AnthropicError": _object("type error", error=_object("type message", message=_TEXT)),
    "Error": _object("error", error=_object("code message hint details", message=_TEXT)),
}
"""Answers that are no wire models: what is promised of them."""

_HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
EXAMPLES: Mapping[type[BaseModel], dict[str, Any]] = {
    openai.ChatCompletionRequest: _HELLO,
    completions.CompletionRequest: {"prompt": "Once upon a time", "max_tokens": 16},
    EmbeddingsRequest: {"model": "wordllama", "input": ["one text", "another"]},
    anthropic.MessagesRequest: _HELLO,
    anthropic.CountTokensRequest: {"messages": _HELLO["messages"]},
    responses.ResponseRequest: {"input": "Say hello.", "max_output_tokens": 16},
    responses.CountInputRequest: {"input": "Say hello."},
    native.TurnRequest: {"prompt": "Say hello.", "max_tokens": 16},
    native.ForkRequest: {"at_message": 0},
    native.ListenRequest: {"port": 0},
    native.AddModelRequest: {"path": "/models/some.gguf"},
    context.OpsRequest: {"ops": [{"op": "drop", "select": "tool[:-1]"}, {"op": "repos"}]},
    context.AppendRequest: {"role": "user", "content": "Say hello."},
    context.PolicyRequest: {"policy": "tool-rolling-drop:keep=4"},
    context.EditReuseRequest: {"edit_reuse": "drop"},
    context.ScriptRequest: {"script": "repos", "dry_run": True},
    tiers.PruneRequest: {"unused_for_s": 86400, "dry_run": True},
    tiers.HintRequest: {"expect_s": 30},
    memory_watch.WatchRequest: {"paths": ["/home/ann/.codex/sessions"], "once": True},
    memory.AddRequest: {"turns": [{"text": "I live in Lyon now."}], "namespace": "user"},
    memory.RememberRequest: {"namespace": "project:tea"},
    memory.SearchRequest: {"query": "Where do I live?", "limit": 5},
    memory.KeepBothRequest: {"newer": "r5", "older": "r3"},
    memory.ForgetRequest: {"ids": ["t12"], "dry_run": True},
}
"""A body of each kind."""
