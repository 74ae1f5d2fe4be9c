"""Which lines of a Claude Code log lead to its last message: a rewind leaves the others behind.

Every line names the one before it by `parentUuid`. The log is looked through once before it is read, for only its end
says which branch is the active one; what is kept of a line is its `uuid` and a number. Sub-agents are left in file order.
"""

from __future__ import annotations

from array import array
from typing import Any

from akashic_daemon.transcript.content import as_dict, as_key, as_list, as_text

_ROOT = -1
_SPOKEN = ("user", "assistant")


class Branches:
    """The tree of one log's lines, and which of them are on the way to the last message."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._parents = array("q")
        self._abandoned: bytearray | None = None
        self._previous = self._last = _ROOT
        self._session: str | None = None
        self._has_links = False
        self._answers: set[str] = set()
        self._calls: set[str] = set()

    def survey(self, index: int, line: Any) -> None:
        """Take the record `index`, in order. Never raises: what can't be a line is passed over."""
        self._parents.extend([_ROOT] * (index + 1 - len(self._parents)))
        fields = as_dict(line)
        uuid = as_key(fields.get("uuid"))
        if uuid is None:
            return
        self._parents[index] = self._parent(fields)
        self._at[uuid] = index
        if is_main(fields):
            self._previous, self._session = index, as_key(fields.get("sessionId"))
            if fields.get("type") in _SPOKEN:
                self._last = index

    def _parent(self, fields: dict[str, Any]) -> int:
        """Return the record before this one. A line of the main thread whose parent is unknown goes on where it stands."""
        parent = as_key(fields.get("parentUuid"))
        if parent is not None:
            self._has_links = self._has_links or (parent in self._at and is_main(fields))
            return self._at.get(parent, self._previous)
        logical = self._at.get(as_text(fields.get("logicalParentUuid")))
        if logical is not None:
            return logical
        # A rewind to the very start begins anew; a compaction, or another session in the same file, goes on.
        begins = fields.get("type") in _SPOKEN and not fields.get("isCompactSummary")
        same_session = as_key(fields.get("sessionId")) == self._session
        return _ROOT if begins and same_session else self._previous

    def settle(self) -> None:
        """Choose the branch of the last message; call it after the last `survey`."""
        if self._has_links and self._last != _ROOT:
            self._abandoned = bytearray(b"\1" * len(self._parents))
            at = self._last
            while at != _ROOT and self._abandoned[at]:
                self._abandoned[at] = 0
                at = self._parents[at]
        self._parents = array("q")

    def abandons(self, index: int, line: dict[str, Any]) -> bool:
        """Tell whether a line of the main thread was left behind by a rewind. Ask in file order.

        Calls that one response makes together, and their results, fork the tree too: they belong to the answer that
        is on the branch.
        """
        if self._abandoned is None or index >= len(self._abandoned) or as_key(line.get("uuid")) is None:
            return False
        body = as_dict(line.get("message"))
        blocks = [as_dict(block) for block in as_list(body.get("content"))]
        answer = as_key(body.get("id"))
        if self._abandoned[index]:
            results = {as_key(b.get("tool_use_id")) for b in blocks if as_text(b.get("type")).endswith("tool_result")}
            if answer not in self._answers and not results & self._calls:
                return True
        if answer is not None:
            self._answers.add(answer)
        self._calls |= {as_text(b.get("id")) for b in blocks if as_text(b.get("type")).endswith("tool_use")}
        return False


def is_main(line: dict[str, Any]) -> bool:
    """Tell a line of the main thread from a sub-agent's."""
    agent = as_key(line.get("agentId")) or as_key(line.get("parent_tool_use_id"))
    return agent is None and not line.get("isSidechain")
