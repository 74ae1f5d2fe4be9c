"""In what wrapper a model writes tool calls, told from the text of its chat template.

A template that shows tools but whose wrapper isn't known here counts as one without tools: the definitions are then given
as text, and a note says so. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    id_chars: how long its template wants ids to be; 0 for any length. id_key: a member that may stand before the name.
    native: the template shows tool definitions itself.
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
    id_key: str = ""
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
DEEPSEEK_PLAIN = replace(
    DEEPSEEK, name="deepseek_plain", opening="<｜tool▁call▁begin｜>", after_name="<｜tool▁sep｜>", end="", joint=""
)
NEMOTRON = Syntax("nemotron", "<TOOLCALL>", "</TOOLCALL>", Shape.LIST, joint=", ")
PHI_OBJECT = Syntax("phi4_object", "<|tool_call|>", "<|/tool_call|>")
PHI = Syntax("phi4", "<|tool_call|>", "<|/tool_call|>", Shape.LIST, joint=", ")
GRANITE = Syntax("granite", "<|tool_call|>", shape=Shape.LIST, joint=", ")
COMMAND = Syntax(
    "command_r",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    Shape.LIST,
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
    start="\n",
    end="\n",
    joint=",\n",
)


def syntax_of(template: str) -> Syntax:
    """Return what wrapper a chat template uses; GENERIC when it has none, or none that is known."""
    if "<｜tool▁call▁begin｜>" in template:
        known = DEEPSEEK if "```json" in template else DEEPSEEK_PLAIN
        return replace(known, native="tools" in template.replace("tool_calls", ""))
    if "tools" not in template.replace("tool_calls", ""):
        return GENERIC
    if "[TOOL_CALLS]" in template:
        known = MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
        return replace(known, id_chars=9) if "9" in template and "length" in template else known
    if "<tool_call>" in template:
        if "<arg_key>" in template:
            return GENERIC
        return TAGS if "<function=" in template else HERMES
    if "<TOOLCALL>" in template:
        return NEMOTRON
    if "<|START_ACTION|>" in template:
        return COMMAND
    if "<|tool_call|>" in template:
        if "<|/tool_call|>" not in template:
            return GRANITE
        return PHI_OBJECT if "<|tool_call|>{" in template else PHI
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return LLAMA
    return GENERIC
