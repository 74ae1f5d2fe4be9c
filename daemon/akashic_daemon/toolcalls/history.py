"""Tools and calls in prompts: earlier calls in the form that a template takes, and what it has no place for as text. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.errors import AkashicError
from akashic_daemon.toolcalls.calls import is_object
from akashic_daemon.toolcalls.syntax import Shape, Syntax
from akashic_daemon.toolcalls.tags import tags_of
from akashic_daemon.trajectory.message import ToolCall

_KEY, _VALUE = "probe_key", "probe_value"
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"

Render = Callable[[list[dict[str, Any]]], str]


@dataclass(frozen=True, slots=True)
class Habits:
    """What a template does with calls.

    wants_text: it puts arguments into the prompt as they are, so they must be JSON text and no object. takes_broken: it
    shows arguments that are no JSON object.
    """

    wants_text: bool = False
    takes_broken: bool = False
    has_tool_role: bool = True
    has_system_role: bool = True

    def arguments(self, text: str) -> Any:
        """Return a call's arguments in the form that the template takes."""
        if self.wants_text:
            return text or "{}"
        try:
            value = json.loads(text or "{}")
        except (ValueError, RecursionError):
            return text
        return value if isinstance(value, dict) else text


def find_habits(render: Render, *, knows_calls: bool) -> Habits:
    """Find out by rendering small conversations what a template takes."""

    def attempt(*messages: dict[str, Any]) -> str | None:
        try:
            return render(list(messages))
        except AkashicError:
            return None

    user, system = {"role": "user", "content": "u"}, {"role": "system", "content": "probe_system"}
    has_system = "probe_system" in (attempt(system, user) or "")
    if not knows_calls:
        said = attempt(user, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "probe_tool"})
        return Habits(has_tool_role="probe_tool" in (said or ""), has_system_role=has_system)

    def calling(arguments: Any) -> tuple[str | None, str | None]:
        function = {"name": "probe_name", "arguments": arguments}
        call = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "probe1234", "type": "function", "function": function}],
        }
        result = {"role": "tool", "content": "probe_tool", "tool_call_id": "probe1234", "name": "probe_name"}
        return attempt(user, call), attempt(user, call, result, {"role": "assistant", "content": "b"}, user)

    as_object, _ = calling({_KEY: _VALUE})
    as_string, followed = calling(json.dumps({_KEY: _VALUE}))
    wants_text = not _shows_json(as_object) and _shows_json(as_string)
    _, object_followed = calling({_KEY: _VALUE})
    broken, _ = calling('{"probe_broken')
    return Habits(
        wants_text=wants_text,
        takes_broken="probe_broken" in (broken or ""),
        has_tool_role="probe_tool" in ((followed if wants_text else object_followed) or ""),
        has_system_role=has_system,
    )


def _shows_json(text: str | None) -> bool:
    """Tell if the probe's arguments stand in a prompt unspoilt: not as Python, nor as JSON within a JSON string."""
    if text is None or _VALUE not in text:
        return False
    return f"'{_KEY}'" not in text and f'\\"{_KEY}' not in text


def calls_as_text(calls: Sequence[ToolCall], syntax: Syntax) -> str:
    """Return calls as the model would have written them; broken arguments as they are."""
    out = []
    for call in calls:
        arguments = call.arguments or "{}"
        if syntax.shape is Shape.TAGS and is_object(arguments):
            inner = tags_of(call.name, json.loads(arguments))
        elif syntax.shape is Shape.NAMED:
            inner = f"{call.name}{syntax.after_name}{arguments}"
        else:
            name = json.dumps(call.name, ensure_ascii=False)
            inner = f'{{"{syntax.name_key}": {name}, "{syntax.arguments_key}": {arguments}}}'
        out.append(inner)
    if syntax.shape is Shape.LIST:
        out = ["[" + syntax.joint.join(out) + "]"]
    if syntax.bare:
        return syntax.joint.join(out)
    joint = syntax.joint if syntax.outer[0] else "\n"
    return joint.join(f"{syntax.opening}{syntax.start}{inner}{syntax.end}{syntax.closing}" for inner in out)


def as_text(tools: Sequence[Mapping[str, Any]], syntax: Syntax) -> str:
    """Return what a system message says of the tools when the template can't."""
    lines = [json.dumps(_function(tool), ensure_ascii=False) for tool in tools]
    example = calls_as_text([ToolCall("", "NAME", '{"KEY": "VALUE"}')], syntax)
    return "\n".join(
        [
            "# Tools",
            "",
            "These functions can be called; each line describes one as JSON with a schema of its arguments:",
            "<tools>",
            *lines,
            "</tools>",
            "",
            "To call one, write its name and its arguments as a JSON object, just like this:",
            f"{syntax.outer[0]}{example}{syntax.outer[1]}",
        ]
    )


def _function(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return {key: value for key, value in function.items() if key != "strict"} if isinstance(function, Mapping) else tool


def shown_id(call_id: str, syntax: Syntax) -> str:
    """Return an id as the template wants it: of its length, the same for the same id."""
    length = syntax.id_chars
    if not length or (len(call_id) == length and call_id.isalnum() and call_id.isascii()):
        return call_id
    digest = int.from_bytes(hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=16).digest(), "big")
    out = ""
    for _ in range(length):
        digest, letter = divmod(digest, len(_ID_LETTERS))
        out += _ID_LETTERS[letter]
    return out
