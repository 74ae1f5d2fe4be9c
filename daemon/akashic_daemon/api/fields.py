"""Fields of requests that all APIs treat alike: nulls, fields that mean nothing here, and what the model may write."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from akashic_daemon.errors import BadRequest
from akashic_daemon.protocol.openai import AkashicExtension
from akashic_daemon.schedule.events import NAMED_TOOL
from akashic_daemon.trajectory.message import Message, Role

logger = logging.getLogger("akashic.openai")
_NAMED_FIELDS = 32
"""So many ignored fields are named in the header and remembered for the log; a header has a length limit."""

_MOST_TOOLS = 1024


def without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that are null: the way to ask for the default."""
    return {key: value for key, value in data.items() if value is not None}


def ignored_header(request: Request, names: Sequence[str]) -> dict[str, str]:
    """Return the header that names the ignored fields, and log each name the first time."""
    if not names:
        return {}
    shown = [json.dumps(name)[1:-1][:64] for name in names[:_NAMED_FIELDS]]
    seen: set[str] = request.app.state.ignored_fields
    new = [name for name in shown if name not in seen]
    if new and len(seen) < _NAMED_FIELDS:
        seen.update(new)
        logger.info("request fields that mean nothing here are ignored: %s", ", ".join(new))
    more = [f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return {"x-akashic-ignored": ", ".join([*shown, *more])}


def extension_fields(extension: AkashicExtension) -> dict[str, Any]:
    """Return what our own part of a request says, as fields of `GenerationInput`."""
    return {
        "session": extension.session,
        "policy": extension.policy,
        "edit_reuse": extension.edit_reuse,
        "expect_s": None if extension.hint is None else extension.hint.expect_s,
        "priority": extension.priority,
        "cache_ops": tuple(extension.cache_ops),
        "memory": extension.memory,
    }


def notes_on(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return what a client is told of messages whose last one isn't continued."""
    if messages and messages[-1].role is Role.ASSISTANT:
        return ("the last message is the assistant's; it was taken as complete, and another one answers",)
    return ()


def check_count(tools: Sequence[Any]) -> None:
    """Raise BadRequest for more tools than a request may have."""
    if len(tools) > _MOST_TOOLS:
        raise BadRequest(f"the request has {len(tools)} tools, more than {_MOST_TOOLS}", param="tools")


def checked_choice(choice: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a tool choice that the tools allow. Raises BadRequest for a call that no tool could answer."""
    names = [str(tool["function"]["name"]) for tool in tools]
    if choice == "required" and not names:
        raise BadRequest(
            "field 'tool_choice' asks for a tool call, and there are no tools",
            hint="send function tools, or leave tool_choice out",
            param="tool_choice",
        )
    wanted = choice.removeprefix(NAMED_TOOL) if choice.startswith(NAMED_TOOL) else None
    if wanted is not None and wanted not in names:
        raise BadRequest(
            f"field 'tool_choice' names {wanted!r}, which is none of the tools",
            hint=f"the tools are {', '.join(names) or 'none'}",
            param="tool_choice",
        )
    return choice
