"""The items of an answer in OpenAI's Responses API: reasoning, messages and calls."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Literal

from akashic_daemon.schedule.events import ToolCallDelta
from akashic_daemon.toolcalls.custom import InputReader
from akashic_daemon.transcript.responses_items import sealed_thought

Item = dict[str, Any]
Kind = Literal["reasoning", "text", "call", "custom"]
_ID_HEADS = {"reasoning": "rs", "text": "msg", "call": "fc", "custom": "ctc"}


class Output:
    """The items that are done, and one that may be open.

    sealed: whether clients want thoughts as opaque text too. custom: the names of tools whose input is free text.
    """

    def __init__(self, response_id: str, *, sealed: bool, custom: AbstractSet[str] = frozenset()) -> None:
        self._custom = custom
        self._input = InputReader()
        self._suffix = response_id.removeprefix("resp_")
        self._sealed = sealed
        self.items: list[Item] = []
        self.kind: Kind | None = None
        """Of the open item."""
        self.text = ""
        self.name = ""
        self.call_index: int | None = None
        self._call_id = ""

    @property
    def index(self) -> int:
        """The open item's place."""
        return len(self.items)

    def begin(self, kind: Kind) -> None:
        """Open an item of text."""
        self.kind, self.call_index, self.text = kind, None, ""

    def begin_call(self, delta: ToolCallDelta) -> None:
        """Open a call."""
        assert delta.id is not None, "the first delta of a call has its id and name"
        assert delta.name is not None, "the first delta of a call has its id and name"
        self.begin("custom" if delta.name in self._custom else "call")
        self.call_index, self._call_id, self.name = delta.index, delta.id, delta.name
        self._input = InputReader()

    def add(self, arguments: str) -> str:
        """Add to the open call; return what its client is told of that."""
        told = self._input.push(arguments) if self.kind == "custom" else arguments
        self.text += told
        return told

    def end_input(self) -> str:
        """Return what is still to be told of the open call, whose arguments have ended."""
        told = self._input.finish() if self.kind == "custom" else ""
        self.text += told
        return told

    def end(self, status: str = "completed") -> Item:
        """Close the open item and return it; an empty object when none is open."""
        if self.kind is None:
            return {}
        self.end_input()
        item = self.item(status)
        self.items.append(item)
        self.kind, self.call_index, self.text = None, None, ""
        return item

    def item(self, status: str) -> Item:
        """Return the open item as it is now."""
        assert self.kind is not None, "an item is open"
        head: Item = {"id": self._item_id(), "status": status}
        if self.kind == "call":
            call = {"call_id": self._call_id, "name": self.name, "arguments": self.text}
            return {**head, "type": "function_call", **call}
        if self.kind == "custom":
            return {**head, "type": "custom_tool_call", "call_id": self._call_id, "name": self.name, "input": self.text}
        content = [] if status == "in_progress" else [part_of(self.kind, self.text)]
        if self.kind == "text":
            return {**head, "type": "message", "role": "assistant", "content": content}
        item: Item = {**head, "type": "reasoning", "summary": [], "content": content}
        if self._sealed:
            item["encrypted_content"] = None if status == "in_progress" else sealed_thought(self.text)
        return item

    def place(self, *, content: bool = False) -> Item:
        """Return how events name the open item."""
        place: Item = {"item_id": self._item_id(), "output_index": self.index}
        return {**place, "content_index": 0} if content else place

    def _item_id(self) -> str:
        return f"{_ID_HEADS[self.kind or 'text']}_{self._suffix}{self.index}"


def part_of(kind: Kind, text: str) -> Item:
    """Return a part of an item's content."""
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
