"""Wire models of the native routes, all below `/akashic/v1`.

    GET    /status                      Status
    POST   /listen                      ListenRequest -> Listening: on TCP too, until the daemon ends
    GET    /stats                       Stats
    GET    /stats/stream?interval_s=1   NDJSON of Stats
    POST   /import?format=&name=&file=  body: the transcript's bytes, `file` what errors call it; NDJSON of ImportEvent
    GET    /sessions                    SessionList
    GET    /sessions/{id}               SessionDetail
    POST   /sessions/{id}/fork          ForkRequest -> SessionSummary
    GET    /sessions/{id}/export        NDJSON, one message a line (`trajectory.message.Message.to_json`)
    GET    /sessions/{id}/export?kv=1   a warm session as one file (`protocol.archive`), which /import takes
    DELETE /sessions/{id}               RemovedSession
    POST   /sessions/{id}/turn          TurnRequest -> NDJSON of TurnEvent; creates the session when it's new, waits for its other turns
    GET    /cache/verify?fix=1          NDJSON of one StoreReport
    GET    /models                      ModelList
    POST   /models                      AddModelRequest -> ModelSummary
    GET    /models/{name}               ModelDetail
    DELETE /models/{name}               RemovedModel

Errors are `{"error": AkashicError.to_wire()}` with the error's HTTP status; in a stream, an event with `error` set.
Times are seconds since the epoch unless a name ends otherwise; sizes end in their unit.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from akashic_daemon.protocol.memory import MemoryAsk
from akashic_daemon.protocol.openai import MOST_STOPS
from akashic_daemon.protocol.tiers import TierReport
from akashic_daemon.protocol.wire import Wire

MissCause = Literal[
    "cold",
    "text_differs",
    "new_session",
    "evicted",
    "tokenization_differs",
    "window_moved",
    "message_removed",
    "message_replaced",
    "message_inserted",
    "volatile_text",
    "arguments_reserialised",
    "tools_reordered",
    "program_differs",
    "answer_differs",
    "model_changed",
]
"""Why a request couldn't reuse more: nothing like it was computed; its text differs from what was computed; no earlier
turn shares its start; it was computed and has been evicted; the same text was tokenized otherwise; the prompt's
start moved because the history outgrew the window; a message of the history was removed, replaced (its thinking or tool
output shortened included) or inserted; a line that changes with every request; the same tool arguments, written otherwise;
the same tools in another order; other cache operations than before; the history has another answer than the one that
was generated; it was computed by another model, or by the same one set up otherwise (`detail` says what changed)."""


class Miss(Wire):
    """The first place where a prompt left what was already computed."""

    cause: MissCause
    at_token: int
    at_message: int | None = None
    expected: str | None = None
    got: str | None = None
    could_reuse: int = 0
    """Tokens in all that could have been reused: by edits as cache operations, or had nothing been evicted or changed."""
    detail: str | None = None


class RecalledTurn(Wire):
    """A turn that memory put before a question. source: the conversation it is from."""

    turn: str
    source: str
    speaker: str
    event_at_s: float | None = None
    score: float = 0.0


class Recalled(Wire):
    """What memory put before the newest question, in the order in time. remembered: turns that left the window for memory."""

    namespaces: list[str] = Field(default_factory=list)
    tokens: int = 0
    turns: list[RecalledTurn] = Field(default_factory=list)
    remembered: int = 0


class Reuse(Wire):
    """What a request reused and computed, in tokens of its prompt. This is the response's `akashic` block."""

    session: str | None = None
    plan: Literal["program", "plain", "edited"] = "plain"
    reused_tokens: int = 0
    reused_by_tier: dict[str, int] = Field(default_factory=dict)
    computed_tokens: int = 0
    dropped_tokens: int = 0
    reposed_tokens: int = 0
    drop_skipped_tokens: int = 0
    policy: str | None = None
    left_out_messages: int = 0
    left_out_tokens: int = 0
    miss: Miss | None = None
    memory: Recalled | None = None
    notes: list[str] = Field(default_factory=list)


class Timing(Wire):
    """Seconds a request spent, and its speed."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0


class EngineStatus(Wire):
    """What is loaded and how full it is. Bytes are what the daemon itself holds."""

    model: str | None = None
    state: Literal["none", "loading", "ready", "failed"] = "none"
    detail: str | None = None
    window_tokens: int = 0
    kv_cells_total: int = 0
    kv_cells_used: int = 0
    sequences_total: int = 0
    sequences_used: int = 0
    model_bytes: int = 0
    kv_bytes: int = 0
    threads: int = 0
    running_limit: int = 0
    """Requests that may run together now: fewer than set while their KV fills the engine."""


class Status(Wire):
    """Answer of `/status`: who runs, since when, with what."""

    version: str
    code: str = ""
    """Digest of the code that it runs; a daemon of before this field says none."""
    protocol_version: int
    pid: int
    started_at_s: float
    uptime_s: float
    healthy: bool
    health_detail: str | None = None
    socket: str
    tcp: str | None = None
    database: str
    database_bytes: int = 0
    resident_bytes: int = 0
    engine: EngineStatus
    running: int = 0
    queued: int = 0
    sessions: int = 0
    tiers: TierReport = TierReport()
    warnings: list[str] = Field(default_factory=list)


class ListenRequest(Wire):
    """Ask the daemon to listen on a loopback port; 0 is any free one. Where it listens already it goes on."""

    port: int = Field(0, ge=0, le=65535)


class Listening(Wire):
    """Where TCP clients find the daemon."""

    tcp: str


class SessionActivity(Wire):
    """One running or waiting request."""

    request: str
    session: str | None
    state: Literal["queued", "reload", "prefill", "decode"]
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    age_s: float = 0.0


class Stats(Wire):
    """A snapshot of counters. Totals count since the daemon's start; `*_per_s` cover the last few seconds."""

    at_s: float
    uptime_s: float
    requests_total: int = 0
    requests_failed_total: int = 0
    requests_cancelled_total: int = 0
    remote_requests_total: int = 0
    """Those of all that other servers computed."""
    prompt_tokens_total: int = 0
    reused_tokens_total: int = 0
    reused_by_tier: dict[str, int] = Field(default_factory=dict)
    computed_tokens_total: int = 0
    dropped_tokens_total: int = 0
    reposed_tokens_total: int = 0
    generated_tokens_total: int = 0
    evicted_tokens_total: int = 0
    compactions_total: int = 0
    preempted_total: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    first_token_p50_s: float | None = None
    first_token_p95_s: float | None = None
    inter_token_p50_s: float | None = None
    inter_token_p95_s: float | None = None
    steps_total: int = 0
    miss_causes: dict[str, int] = Field(default_factory=dict)
    engine: EngineStatus = EngineStatus()
    tiers: TierReport = TierReport()
    activity: list[SessionActivity] = Field(default_factory=list)
    queued: int = 0
    resident_bytes: int = 0


class ImportedSession(Wire):
    """One conversation that an import stored."""

    session: str
    conversation: str
    messages: int
    new_messages: int
    is_main: bool


class ImportProblem(Wire):
    """Lines that could not be used: how many, why, and the first one's number (1-based)."""

    reason: str
    count: int
    first_line: int | None = None


class ImportedKv(Wire):
    """What came of a warm session's KV. known_blocks: were here already. detail: why all of it was left out, else empty."""

    blocks: int = 0
    tokens: int = 0
    kv_bytes: int = 0
    known_blocks: int = 0
    left_out_blocks: int = 0
    detail: str = ""


class ImportEvent(Wire):
    """One line of an import's answer: progress while it runs, then a result or an error."""

    kind: Literal["progress", "done", "error"]
    read_bytes: int = 0
    messages: int = 0
    format: str | None = None
    sessions: list[ImportedSession] = Field(default_factory=list)
    problems: list[ImportProblem] = Field(default_factory=list)
    kv: ImportedKv | None = None
    error: dict[str, Any] | None = None


class SessionSummary(Wire):
    """A line of `session list`."""

    session: str
    title: str = ""
    messages: int = 0
    tokens: int | None = None
    created_at_s: float = 0.0
    updated_at_s: float = 0.0
    forked_from: str | None = None
    origin: str = ""


class SessionList(Wire):
    """Answer of `/sessions`, newest first."""

    sessions: list[SessionSummary]


class MessageView(Wire):
    """A message of a session, for people: `message` is `Message.to_json`."""

    index: int
    digest: str
    tokens: int | None = None
    created_at_s: float = 0.0
    message: dict[str, Any]


class SessionDetail(Wire):
    """A session and its messages."""

    summary: SessionSummary
    messages: list[MessageView]


class ForkRequest(Wire):
    """Branch off: the new session holds the first `at_message` messages (all when absent)."""

    name: str | None = None
    at_message: int | None = Field(None, ge=0)


class RemovedSession(Wire):
    """What `session rm` really removed. kv_left: why some of its KV is still on the disk, else empty."""

    session: str
    messages_removed: int
    messages_shared: int
    kv_blocks: int = 0
    kv_bytes: int = 0
    kv_left: str = ""
    memory_turns: int = 0
    """Turns of it that long-term memory holds still."""


class StoreFinding(Wire):
    """One thing that is wrong in a store; holds no text of a message."""

    store: Literal["sessions", "blocks"] = "sessions"
    kind: str
    subject: str
    detail: str
    is_mended: bool = False


class StoreReport(Wire):
    """What a look for damage found; sound when `findings` is empty."""

    kind: Literal["done", "error"] = "done"
    sessions: int = 0
    findings: list[StoreFinding] = Field(default_factory=list)
    error: dict[str, Any] | None = None


class TurnRequest(Wire):
    """One user turn in a session that the daemon keeps. Unset sampling fields take the `[chat]` settings."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    prompt: str
    model: str | None = None
    system: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: list[str] = Field(default_factory=list, max_length=MOST_STOPS)
    policy: str | None = None
    edit_reuse: Literal["exact", "drop"] | None = None
    memory: bool | MemoryAsk | None = None


class TurnEvent(Wire):
    """One line of a turn's answer.

    start: the prompt was laid out (`reuse` says what left the window); progress: prefill so far; thinking: more of
    what the model thinks first; text: more of the answer; done: the end, with everything; error: the end, badly. The session keeps what was generated either way.
    """

    kind: Literal["start", "progress", "thinking", "text", "done", "error"]
    session: str | None = None
    request: str | None = None
    text: str = ""
    prefilled_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None
    reuse: Reuse | None = None
    timing: Timing | None = None
    error: dict[str, Any] | None = None


class ModelSummary(Wire):
    """A line of `model list`. `window_tokens` is exact for a loaded model; None where its file doesn't tell.

    remote: another server computes it, at the URL that `path` is.
    """

    name: str
    path: str
    size_bytes: int
    window_tokens: int | None = None
    default: bool = False
    loaded: bool = False
    embedded: bool = False
    remote: bool = False
    problem: str | None = None


class ModelList(Wire):
    """Answer of `/models`."""

    models: list[ModelSummary]


class ModelDetail(Wire):
    """Answer of `/models/{name}`; `capabilities` maps each to true, false or a value, `why_not` to reasons.

    A model that isn't loaded has no capabilities, fingerprint or KV size: only its engine knows those.
    """

    summary: ModelSummary
    description: str = ""
    architecture: str = ""
    parameters_count: int = 0
    vocabulary_size: int = 0
    trained_window_tokens: int = 0
    window_tokens: int = 0
    kv_bytes_per_token: int = 0
    fingerprint: str = ""
    capabilities: dict[str, Any] = Field(default_factory=dict)
    why_not: dict[str, str] = Field(default_factory=dict)
    has_chat_template: bool = False
    metadata: dict[str, str] = Field(default_factory=dict)


class RemotePlace(Wire):
    """A model of another OpenAI-compatible server. model: its name there; empty for the only one.

    window_tokens: 0 when unknown. key_env, key_file: where the daemon finds the key, at most one. passes_ops: the server
    has AKV's fields. session_header: carries the session's name, so that routers find its replica; empty for none.
    """

    url: str
    model: str = ""
    window_tokens: int = Field(0, ge=0)
    key_env: str = ""
    key_file: str = ""
    passes_ops: bool = False
    session_header: str = Field("x-session-id", pattern=r"^[A-Za-z0-9-]{0,64}$")


class AddModelRequest(Wire):
    """Register a GGUF or a folder by path (absolute), or a remote model; the name defaults to the file's stem."""

    path: str = ""
    remote: RemotePlace | None = None
    name: str | None = None
    default: bool = False


class RemovedModel(Wire):
    """What `model rm` removed: the registration, never the file."""

    name: str
    path: str
