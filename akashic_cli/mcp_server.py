"""Memory and sessions as tools of the Model Context Protocol, on stdin and stdout.

Each call talks to the daemon anew, so a restarted daemon is no end. What memory says is marked, so that an agent's log that
is watched isn't stored again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from akashic_cli.client import connect, segment
from akashic_cli.render.memory import when
from akashic_daemon import __version__
from akashic_daemon.errors import AkashicError
from akashic_daemon.memory.recalled import marked
from akashic_daemon.protocol.memory import Forgotten, Remembered, SearchResult, TurnView
from akashic_daemon.protocol.native import MessageView, SessionDetail, SessionList

if TYPE_CHECKING:
    from akashic_cli.client import Client

INSTRUCTIONS = (
    "Long-term memory over all sessions of this machine. Search it before you ask the user for something that was said "
    "or decided earlier; add what should outlive this conversation. Text between <akashic-memory> marks was said at "
    "the time given, and may be out of date."
)
_LONGEST_MESSAGE = 4000
_LONGEST_ANSWER = 60_000
"""Characters, some 15,000 tokens: clients refuse answers that would fill their model's window (Claude Code at 25,000)."""
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_REMOVES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Namespaces = Annotated[
    list[str] | None, Field(description="Where to look: user, project:NAME, session:NAME; everywhere when absent.")
]


class Tools:
    """The tools; each returns text for a model."""

    def __init__(self, *, namespace: str | None, autostart: bool) -> None:
        self._namespace = namespace
        self._autostart = autostart

    def memory_search(
        self,
        query: Annotated[str, Field(description="A question or words; names, dates and identifiers help.")],
        limit: Annotated[int, Field(description="Most turns.", ge=1, le=100)] = 8,
        namespaces: Namespaces = None,
    ) -> str:
        """Find what was said earlier that fits a question, the best first, with ids, times and where it was said."""
        body: dict[str, Any] = {"query": query, "limit": limit}
        if namespaces:
            body["namespaces"] = namespaces
        with self._daemon() as client:
            result = SearchResult.model_validate(client.post("/memory/search", body))
        if result.unknown_namespaces:
            there = ", ".join(result.known_namespaces) or "nothing yet"
            return f"Memory has no {', '.join(result.unknown_namespaces)}; it has {there}."
        if not result.found:
            return "Memory holds nothing there."
        lines, more = _fitting(map(_turn_line, result.found))
        told = f"\n({more} more; ask for fewer with `limit`)" if more else ""
        return marked("\n".join(lines)) + told

    def memory_add(
        self,
        text: Annotated[str, Field(description="What to remember, understandable by itself.", min_length=1)],
        namespace: Annotated[str | None, Field(description="user, project:NAME or session:NAME.")] = None,
        speaker: Annotated[str, Field(description="Who says it.")] = "user",
    ) -> str:
        """Remember something beyond this conversation. What is known already isn't stored twice."""
        turn = {"text": text, "speaker": speaker, "event_at_s": time.time()}
        body: dict[str, Any] = {"turns": [turn], "source": "mcp"}
        if wanted := namespace or self._namespace:
            body["namespace"] = wanted
        with self._daemon() as client:
            done = Remembered.model_validate(client.long("POST", "/memory/turns", "adding to memory", body=body))
        if not done.turns:
            return "Nothing was stored: the text is what memory itself had said."
        return f"{'Remembered' if done.new else 'Known already'} in {done.namespace} as {', '.join(done.turns)}."

    def memory_forget(
        self,
        ids: Annotated[list[str], Field(description="Ids that memory_search gave, such as t12.", min_length=1)],
        confirm: Annotated[bool, Field(description="False only says what would go; true removes it for good.")] = False,
    ) -> str:
        """Forget turns and all that was made of them. Ask the user before you confirm: it can't be undone."""
        with (
            self._daemon() as client,
            client.stream("POST", "/memory/forget", body={"ids": ids, "dry_run": not confirm}) as events,
        ):
            done = [Forgotten.model_validate(event) for event in events]
        if not done:
            raise ToolError("forgetting: the daemon's answer ended without a result; `akashic daemon logs` says more")
        gone = done[-1]
        lines, more = _fitting(map(_turn_line, gone.turns))
        said = "\n".join([*lines, *([f"… and {more} more"] if more else [])])
        made = f" and {len(gone.records)} statements made of them" if gone.records else ""
        head = f"{len(gone.turns)} turns{made} {'would go' if gone.dry_run else 'are gone'}:"
        return f"{head}\n{marked(said)}" if said else "There is nothing to forget."

    def session_list(self, limit: Annotated[int, Field(description="Most sessions.", ge=1, le=200)] = 20) -> str:
        """List the conversations that this machine keeps, the newest first."""
        with self._daemon() as client:
            found = SessionList.model_validate(client.get("/sessions")).sessions[:limit]
        lines = [f"{s.session}\t{s.messages} messages\t{when(s.updated_at_s)}\t{s.title}" for s in found]
        return "\n".join(lines) or "There are no sessions."

    def session_show(
        self,
        session: Annotated[str, Field(description="A name from session_list.", min_length=1)],
        last: Annotated[int, Field(description="So many of the newest messages.", ge=1, le=200)] = 20,
    ) -> str:
        """Read the newest messages of a conversation; long ones are cut, and say so."""
        with self._daemon() as client:
            detail = SessionDetail.model_validate(client.get(f"/sessions/{segment(session)}"))
        newest, more = _fitting(map(_message, reversed(detail.messages[-last:])))
        told = f"{detail.summary.messages} messages" + (
            f"; {more} of the {last} newest had no room here" if more else ""
        )
        return "\n\n".join([told, *reversed(newest)])

    @contextmanager
    def _daemon(self) -> Iterator[Client]:
        """Give a client. Our errors come out as what a model reads: what was being done, and what to do."""
        try:
            client, _ = connect(autostart=self._autostart)
            with client:
                yield client
        except AkashicError as error:
            raise ToolError(f"{error.message}; {error.hint}" if error.hint else error.message) from error


def build(*, namespace: str | None = None, autostart: bool = True) -> MCPServer[Any]:
    """Return the server. namespace: where is added when a call names none; the setting's when None."""
    server: MCPServer[Any] = MCPServer("akashic", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    tools = Tools(namespace=namespace, autostart=autostart)
    offered: list[tuple[Callable[..., str], ToolAnnotations]] = [
        (tools.memory_search, _READS),
        (tools.memory_add, _ADDS),
        (tools.memory_forget, _REMOVES),
        (tools.session_list, _READS),
        (tools.session_show, _READS),
    ]
    for tool, hints in offered:
        server.tool(annotations=hints, structured_output=False)(tool)
    return server


def _fitting(texts: Iterable[str]) -> tuple[list[str], int]:
    """Return the first texts that fit an answer, the first one anyhow, and how many don't."""
    fit: list[str] = []
    left, more = _LONGEST_ANSWER, 0
    for text in texts:
        left -= len(text)
        if fit and (left < 0 or more):
            more += 1
        else:
            fit.append(text)
    return fit, more


def _turn_line(turn: TurnView) -> str:
    return f"[{turn.id}, {when(turn.event_at_s)}, {turn.speaker}, {turn.source}] {turn.text}"


def _message(view: MessageView) -> str:
    text = str(view.message.get("content") or "")
    calls = [f"[calls {call.get('name')}] {call.get('arguments')}" for call in view.message.get("tool_calls") or ()]
    whole = "\n".join([text, *calls] if text else calls)
    cut = f"… ({len(whole) - _LONGEST_MESSAGE} more characters)" if len(whole) > _LONGEST_MESSAGE else ""
    return f"{view.message.get('role')}: {whole[:_LONGEST_MESSAGE]}{cut}"
