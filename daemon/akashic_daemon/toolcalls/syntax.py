"""In what wrapper a model writes tool calls, told from the text of its chat template.

A template that shows tools but whose wrapper isn't known here counts as one without tools: the definitions are then given
as text, and a note says so. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """What stands inside a wrapper."""

    OBJECT = "object"
    """One JSON object with the name and the arguments."""
    LIST = "list"
    """A JSON array of such objects."""
    NAMED = "named"
    """The bare name, a mark, and the arguments as a JSON object."""
    TAGS = "tags"
    """`<function=NAME>` around a `<parameter=KEY>` for each argument."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How calls are written.

    opening, closing: marks around each call (around all of them for LIST); an empty closing means that nothing follows.
    bare: an answer that begins with the object is a call without the opening too. joint: stands between two calls.
    outer: marks around all calls. after_name: for NAMED, what separates the name from the arguments. start: what stands
    between the opening and the call when the model writes it as it was trained to.
    id_chars: how long its template wants ids to be; 0 for any length. native: the template shows tool definitions itself.
    """

    name: str
    opening: str
    closing: str = ""
    shape: Shape = Shape.OBJECT
    name_key: str = "name"
    arguments_key: str = "arguments"
    bare: bool = False
    joint: str = ""
    start: str = ""
    end: str = ""
    after_name: str = ""
    outer: tuple[str, str] = ("", "")
    id_chars: int = 0
    native: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that a vocabulary may have as control tokens, which print nothing."""
        marks = (self.opening, self.closing, self.after_name.strip(), *self.outer)
        return tuple(dict.fromkeys(mark for mark in marks if mark))


HERMES = Syntax("hermes", "<tool_call>", "</tool_call>", joint="\n", start="\n", end="\n")
GENERIC = Syntax("generic", "<tool_call>", "</tool_call>", joint="\n", start="\n", end="\n", native=False)
"""For templates without tools: Hermes' wrapper, explained in the system message."""
LLAMA = Syntax("llama3", "<|python_tag|>", arguments_key="parameters", bare=True, joint="; ")
MISTRAL = Syntax("mistral", "[TOOL_CALLS]", shape=Shape.LIST, start=" ", joint=", ")
MISTRAL_NAMED = Syntax("mistral_named", "[TOOL_CALLS]", shape=Shape.NAMED, after_name="[ARGS]")
TAGS = Syntax("tags", "<tool_call>", "</tool_call>", Shape.TAGS, joint="\n", start="\n", end="\n")
DEEPSEEK = Syntax(
    "deepseek",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    Shape.NAMED,
    after_name="\n```json\n",
    end="\n```",
    joint="\n",
    outer=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
PHI = Syntax("phi4", "<|tool_call|>", "<|/tool_call|>", Shape.LIST, joint=", ")
GRANITE = Syntax("granite", "<|tool_call|>", shape=Shape.LIST, joint=", ")
COMMAND = Syntax(
    "command_r",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    Shape.LIST,
    name_key="tool_name",
    arguments_key="parameters",
    start="\n",
    end="\n",
    joint=",\n",
)


def syntax_of(template: str) -> Syntax:
    """Return what wrapper a chat template uses; GENERIC when it has none, or none that is known."""
    has_tools = "tools" in template.replace("tool_calls", "")
    if not has_tools:
        return GENERIC
    if "[TOOL_CALLS]" in template:
        known = MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
        return _with_short_ids(known) if "9" in template and "length" in template else known
    if "<tool_call>" in template:
        if "<arg_key>" in template:
            return GENERIC
        return TAGS if "<function=" in template else HERMES
    if "<｜tool▁call▁begin｜>" in template:
        return DEEPSEEK
    if "<|START_ACTION|>" in template:
        return COMMAND
    if "<|tool_call|>" in template:
        return PHI if "<|/tool_call|>" in template else GRANITE
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return LLAMA
    return GENERIC


def _with_short_ids(known: Syntax) -> Syntax:
    from dataclasses import replace

    return replace(known, id_chars=9)
