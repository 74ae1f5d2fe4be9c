"""Wire models of the native routes about long-term memory, all below `/akashic/v1/memory`.

    GET    /memory                        MemoryStats
    POST   /memory/turns                  AddRequest -> Remembered
    POST   /memory/sessions/{id}          RememberRequest -> Remembered: a stored session goes into memory
    POST   /memory/search                 SearchRequest -> SearchResult
    GET    /memory/chunks                 ChunkList; ?namespace= (may be repeated), ?session=
    GET    /memory/chunks/{id}            ChunkCard; 3 or c3
    GET    /memory/history/{id}           History; t12, c3 or r5
    POST   /memory/forget                 ForgetRequest -> NDJSON of one Forgotten
    POST   /memory/keep-both              KeepBothRequest -> History of the newer: a wrong supersession is taken back
    POST   /memory/compact                NDJSON of one MemoryStats
    GET    /memory/export                 NDJSON, a turn a line; ?namespace= (may be repeated)
    POST   /memory/import                 body: what export gave; NDJSON of one Remembered

Namespaces are `user`, `project:NAME` or `session:NAME`. Times are seconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from akashic_daemon.protocol.wire import Wire
from akashic_daemon.types import NAMESPACE_PATTERN

Namespace = Annotated[str, StringConstraints(pattern=rf"^{NAMESPACE_PATTERN}\Z")]
LONGEST_RESULT = 1000
MOST_BUDGET_TOKENS = 1_000_000


class _Asked(Wire):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, regex_engine="python-re")


class MemoryAsk(_Asked):
    """How a request uses memory. namespaces: what is recalled from; the first is where is remembered."""

    budget_tokens: int | None = Field(None, ge=0, le=MOST_BUDGET_TOKENS)
    namespaces: list[Namespace] | None = Field(None, min_length=1, max_length=64)


class NewTurn(_Asked):
    """Something to remember. reference: what names it in its source; a digest of it when absent."""

    text: str = Field(min_length=1)
    speaker: str = Field("user", min_length=1, max_length=200)
    event_at_s: float | None = Field(None, ge=-1e11, le=1e11)
    reference: str | None = Field(None, min_length=1, max_length=500)


class AddRequest(_Asked):
    """Turns of one source, in the order they were said."""

    turns: list[NewTurn] = Field(min_length=1, max_length=10_000)
    namespace: Namespace | None = None
    source: str = Field("added", min_length=1, max_length=500)


class RememberRequest(_Asked):
    """Where a session's messages are remembered."""

    namespace: Namespace | None = None


class Remembered(Wire):
    """What became of turns: new ones, known ones (they got another origin), and how many held recalled text."""

    kind: Literal["done", "error"] = "done"
    namespace: str | None = None
    new: int = 0
    known: int = 0
    recalled: int = 0
    turns: list[str] = Field(default_factory=list)
    error: dict[str, Any] | None = None


class Origin(Wire):
    """One place where a turn was said."""

    source: str
    reference: str
    event_at_s: float | None = None


class TurnView(Wire):
    """A stored turn. score and parts: how well it fits a question, when it was searched for."""

    id: str
    namespace: str
    source: str
    speaker: str
    text: str
    event_at_s: float | None = None
    length_tokens: int = 0
    chunk: str | None = None
    origins: list[Origin] = Field(default_factory=list)
    score: float | None = None
    parts: dict[str, float] = Field(default_factory=dict)


class SearchRequest(_Asked):
    """A question. namespaces: all when absent. now_s: what was said later isn't found, and "last week" counts from it.

    rerank: the model that compacts memory says which of the first 20 come first.
    """

    query: str = Field(max_length=100_000)
    namespaces: list[Namespace] | None = Field(None, max_length=64)
    limit: int = Field(20, ge=1, le=LONGEST_RESULT)
    budget_tokens: int | None = Field(None, ge=1, le=MOST_BUDGET_TOKENS)
    now_s: float | None = Field(None, ge=-1e11, le=1e11)
    explain: bool = False
    rerank: bool = False


class SearchResult(Wire):
    """What fits, the best first. note: why a model had no say in it, though it was asked; tokens: what it read and wrote.

    unknown_namespaces: of those that were named, when nothing was found; known_namespaces: then, all that there are.
    """

    found: list[TurnView] = Field(default_factory=list)
    note: str = ""
    model_tokens: int = 0
    unknown_namespaces: list[str] = Field(default_factory=list)
    known_namespaces: list[str] = Field(default_factory=list)


class ChunkSummary(Wire):
    """A chunk without its text. place: the extent that holds its payload, empty when the database does."""

    id: str
    namespace: str
    state: Literal["open", "waiting", "reconciled"]
    length_tokens: int = 0
    created_at_s: float = 0.0
    sealed_at_s: float | None = None
    reconciled_at_s: float | None = None
    estimated_rho: float | None = None
    place: str = ""


class ChunkList(Wire):
    """Chunks in order."""

    chunks: list[ChunkSummary] = Field(default_factory=list)


class Version(Wire):
    """A chunk's text as a compactor left it; rho is its length over the raw length."""

    version: int
    text: str
    rho: float
    made_by: str
    made_at_s: float


class RecordView(Wire):
    """A statement of reconciliation and the turns that it rests on."""

    id: str
    text: str
    subject: str = ""
    slot: str = ""
    event_at_s: float | None = None
    made_by: str = ""
    turns: list[str] = Field(default_factory=list)
    is_current: bool = True


class RelationView(Wire):
    """`record` stands in `relation` to `other`; of a contradiction it is the newer one."""

    record: str
    other: str
    relation: str
    reason: str = ""


class ChunkLink(Wire):
    """Another chunk that a link joins to this one."""

    chunk: str
    weight: float


class ChunkCard(Wire):
    """All that is known of a chunk. neighbours: the chunks beside it in its extent."""

    chunk: ChunkSummary
    turns: list[TurnView] = Field(default_factory=list)
    versions: list[Version] = Field(default_factory=list)
    records: list[RecordView] = Field(default_factory=list)
    links: list[ChunkLink] = Field(default_factory=list)
    neighbours: list[str] = Field(default_factory=list)


class History(Wire):
    """Where a turn, a chunk or a statement comes from, and how statements stand to each other."""

    id: str
    turns: list[TurnView] = Field(default_factory=list)
    versions: list[Version] = Field(default_factory=list)
    records: list[RecordView] = Field(default_factory=list)
    relations: list[RelationView] = Field(default_factory=list)


class ForgetRequest(_Asked):
    """What is to be forgotten: turns on which every given field agrees. dry_run: only say what would go.

    ids: t12, c3, r5; any of them. session: a source. query: what a search for it finds, at most `limit`. Times are of
    the event, `before_s` excluded.
    """

    ids: list[str] = Field(default_factory=list, max_length=10_000)
    session: str | None = None
    query: str | None = Field(None, max_length=100_000)
    after_s: float | None = None
    before_s: float | None = None
    namespaces: list[Namespace] | None = Field(None, min_length=1, max_length=64)
    limit: int = Field(20, ge=1, le=LONGEST_RESULT)
    dry_run: bool = True


class Forgotten(Wire):
    """What went, or would. chunks_changed: their compacted texts went too, and are made anew without the turns."""

    kind: Literal["done", "error"] = "done"
    dry_run: bool = True
    turns: list[TurnView] = Field(default_factory=list)
    records: list[str] = Field(default_factory=list)
    chunks_changed: list[str] = Field(default_factory=list)
    chunks_removed: list[str] = Field(default_factory=list)
    sessions: list[str] = Field(default_factory=list)
    """Stored sessions that still hold messages from which these turns came."""
    error: dict[str, Any] | None = None


class KeepBothRequest(_Asked):
    """Two statements (r5, r3) of which the first was wrongly said to supersede the second."""

    newer: str
    older: str


class NamespaceStats(Wire):
    """What a namespace holds. rho: means over its chunks, estimated when sealed and actual when compacted."""

    namespace: str
    turns: int = 0
    length_tokens: int = 0
    chunks: int = 0
    waiting_chunks: int = 0
    records: int = 0
    estimated_rho: float | None = None
    actual_rho: float | None = None


class MemoryStats(Wire):
    """What memory holds. extent_bytes: of chunks in extents. write_amplification: bytes written there over bytes stored."""

    kind: Literal["done", "error"] = "done"
    namespaces: list[NamespaceStats] = Field(default_factory=list)
    database_bytes: int = 0
    index_bytes: int = 0
    compactor: str = ""
    model_tokens: int = 0
    problems: list[str] = Field(default_factory=list)
    extent_bytes: int = 0
    write_amplification: float = 1.0
    error: dict[str, Any] | None = None
