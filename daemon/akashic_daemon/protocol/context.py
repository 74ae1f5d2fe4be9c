"""Wire models of the native routes that are about a session's context: programs, policies, explanations.

    GET  /sessions/{id}/context       ContextView
    POST /sessions/{id}/ops           OpsRequest -> OpsResult
    POST /sessions/{id}/messages      AppendRequest -> ContextView; creates the session when it's new; 409 while it is answered
    PUT  /sessions/{id}/policy        PolicyRequest -> ContextView; creates the session when it's new
    PUT  /sessions/{id}/edit_reuse    EditReuseRequest -> ContextView; creates the session when it's new
    POST /sessions/{id}/script        ScriptRequest -> NDJSON of ScriptEvent; creates the session when it's new
    GET  /sessions/{id}/explain?turn= Explanation
    GET  /cache/tree?depth=           CacheTree
    GET  /policies                    PolicyList

Times are seconds since the epoch; counts are tokens unless they say otherwise.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from akashic_daemon.protocol.native import Miss, Reuse
from akashic_daemon.protocol.wire import Wire


class ExplainedSegment(Wire):
    """What became of one message of a prompt.

    role is `answer` for the prompt's open end, `gone` for what was dropped and the request doesn't have any more.
    """

    message: int | None = None
    role: str
    label: str = ""
    tokens: int = 0
    reused: int = 0
    moved: int = 0
    dropped: int = 0
    computed: int = 0


class Explanation(Wire):
    """Why a turn reused what it did."""

    turn: int = 0
    session: str
    at_s: float
    model: str
    plan: Literal["program", "plain", "edited"]
    prompt_tokens: int
    computed_tokens: int
    reused_tokens: int
    dropped_tokens: int = 0
    reposed_tokens: int = 0
    miss: Miss | None = None
    notes: list[str] = Field(default_factory=list)
    segments: list[ExplainedSegment] = Field(default_factory=list)


MessageState = Literal["visible", "partly dropped", "dropped", "replaced", "left out"]


class ContextMessage(Wire):
    """One message of a session in its active cache.

    tokens: of its text; visible_tokens: of what stands for it now. positions: half-open ranges. group: the messages
    that share its segment of the template, when there are others; they only leave together.
    """

    index: int
    role: str
    label: str = ""
    tokens: int = 0
    visible_tokens: int = 0
    state: MessageState = "visible"
    positions: list[tuple[int, int]] = Field(default_factory=list)
    group: tuple[int, int] | None = None


class ContextOp(Wire):
    """An operation that is in force. tokens: how many it took away, or moved. op: as it is stored, selectors resolved."""

    text: str
    at: int
    by: Literal["session", "policy"]
    tokens: int
    op: dict[str, Any]


class ContextView(Wire):
    """A session's active cache as the next answer would find it.

    policy: what is asked before that answer; own_policy: whether the session itself names it, or the settings do.
    """

    session: str
    model: str
    window_tokens: int
    messages: list[ContextMessage] = Field(default_factory=list)
    visible_tokens: int = 0
    next_position: int = 0
    dropped_tokens: int = 0
    policy: str = "none"
    own_policy: bool = False
    edit_reuse: Literal["exact", "drop"] | None = None
    policy_since: int = 0
    ops: list[ContextOp] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class OpsRequest(Wire):
    """Operations to carry out at the end of a live session, in the words of `akashic.cache_ops`, without `at`."""

    ops: list[dict[str, Any]]


class OpsResult(Wire):
    """What was added to the session's program, and the active cache after it."""

    added: list[ContextOp]
    notes: list[str] = Field(default_factory=list)
    context: ContextView


class AppendRequest(Wire):
    """A message to append."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class PolicyRequest(Wire):
    """The session's policy; None gives it back to the settings, `none` switches policies off."""

    policy: str | None


class EditReuseRequest(Wire):
    """What an edited history of the session becomes; None leaves it to the settings."""

    edit_reuse: Literal["exact", "drop"] | None


class ScriptRequest(Wire):
    """A script; `files` holds the text of each file that it names, read by the client.

    dry_run: tell what each statement would do; nothing is generated or changed.
    """

    script: str
    files: dict[str, str] = Field(default_factory=dict)
    dry_run: bool = False
    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=10)
    seed: int | None = None


class ScriptEvent(Wire):
    """One line of a script's course.

    step: a statement was carried out, and what is visible then; text: more of an answer; done: the session (or the
    branch that the script went on in) has the outcome; error: the end, with everything as it was before.
    saved_tokens: what editing the text instead would compute again; only a dry run tells.
    """

    kind: Literal["step", "text", "done", "error"]
    session: str | None = None
    line: int = 0
    statement: str = ""
    text: str = ""
    appended_tokens: int = 0
    dropped_tokens: int = 0
    moved_tokens: int = 0
    saved_tokens: int = 0
    messages: int = 0
    visible_tokens: int = 0
    next_position: int = 0
    failures: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    reuse: Reuse | None = None
    context: ContextView | None = None
    error: dict[str, Any] | None = None


class CacheNode(Wire):
    """A node of the radix index.

    tokens: of a run; those that an operation drops, a shift moves or an insertion brings; visible ones of a repos.
    resident_tokens: of its own cells, how many anything holds. holders: sequences that hold some; running: of those that
    answer now. last_used: orders nodes, higher is later. hidden_nodes: how many stand below but are too deep to be told.
    """

    kind: Literal["run", "drop", "repos", "shift", "insert"]
    tokens: int
    resident_tokens: int
    holders: int = 0
    running: int = 0
    last_used: int = 0
    hidden_nodes: int = 0
    children: list[CacheNode] = Field(default_factory=list)


class CacheTree(Wire):
    """The radix index of the loaded model: everything that is computed."""

    model: str | None = None
    cells_total: int = 0
    cells_used: int = 0
    sequences_total: int = 0
    sequences_used: int = 0
    nodes: int = 0
    roots: list[CacheNode] = Field(default_factory=list)


class PolicyInfo(Wire):
    """A policy that sessions can name. problem: why it can't be used."""

    name: str
    about: str = ""
    parameters: dict[str, str] = Field(default_factory=dict)
    rules: list[str] = Field(default_factory=list)
    source: str = ""
    path: str | None = None
    problem: str | None = None


class PolicyList(Wire):
    """Policies that come with akashic, then those of the settings folder."""

    policies: list[PolicyInfo]
