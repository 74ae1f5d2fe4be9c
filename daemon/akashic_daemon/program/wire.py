"""Cache programs as requests carry them: `akashic.cache_ops`, and AKV's drop_message / reposition / drop_rule.

Sources: PAPERS section 3. Programs are cumulative and idempotent: each request brings all of it, and dropping again what
is gone changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akashic_daemon.errors import BadRequest
from akashic_daemon.program.conditions import Condition
from akashic_daemon.program.grammar import nearest
from akashic_daemon.program.message_ops import (
    DropMessages,
    DropSelected,
    DropTokens,
    MessageOp,
    ReplaceMessage,
    ReplaceSelected,
    ReposAt,
)
from akashic_daemon.program.path import MAX_OPS
from akashic_daemon.program.policy import Policy, Rule, load
from akashic_daemon.program.ranges import Range
from akashic_daemon.program.selectors import BySlice, ByTokens, Selector, parse
from akashic_daemon.trajectory.message import Role

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "drop": ("op", "messages", "select", "tokens", "at"),
    "repos": ("op", "at"),
    "replace": ("op", "message", "select", "content", "at"),
}
_COUNT_OF_ROLE = {
    Role.TOOL: "tool_results",
    Role.ASSISTANT: "assistant_messages",
    Role.USER: "user_messages",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of its cache; policy is None when it names none. Notes are for the response."""

    ops: tuple[MessageOp, ...] = ()
    policy: Policy | None = None
    notes: tuple[str, ...] = ()


def from_request(
    *,
    message_count: int,
    cache_ops: Sequence[Mapping[str, Any]] | None = None,
    policy: str | None = None,
    drop_message: Any = None,
    reposition: Any = None,
    drop_rule: Any = None,
    find: Callable[[str], Policy] = load,
) -> Asked:
    """Return what the fields of a request ask for; `find` knows policies by what `policy` says.

    Raises BadRequest on what can't be read, and on fields that contradict each other.
    """
    akv = [
        name
        for name, value in (("drop_message", drop_message), ("reposition", reposition), ("drop_rule", drop_rule))
        if value
    ]
    if cache_ops and akv:
        raise BadRequest(
            f"akashic.cache_ops and {akv[0]} in one request", hint="both are cache programs; send one of them"
        )
    if policy and drop_rule:
        raise BadRequest("policy and drop_rule in one request", hint="both are policies; send one of them")
    named = find(policy) if policy else None
    if akv:
        asked = from_akv(drop_message, reposition, drop_rule, message_count=message_count)
        return Asked(asked.ops, asked.policy or named, asked.notes)
    return Asked(tuple(from_wire(cache_ops or ())), named)


def from_wire(cache_ops: Sequence[Mapping[str, Any]]) -> list[MessageOp]:
    """Read the field `cache_ops`. Raises BadRequest naming the operation by its number."""
    if not isinstance(cache_ops, Sequence) or isinstance(cache_ops, str):
        raise BadRequest("cache_ops isn't a list of operations")
    if len(cache_ops) > MAX_OPS:
        raise BadRequest(f"cache_ops holds {len(cache_ops)} operations; at most {MAX_OPS} are taken", hint="join drops")
    return [_operation(body, f"cache_ops[{i}]") for i, body in enumerate(cache_ops)]


def to_stored(op: MessageOp) -> dict[str, Any]:
    """Return a resolved operation for storage, in the words of the wire; `from_stored` is the inverse."""
    out: dict[str, Any] = {"op": "repos" if isinstance(op, ReposAt) else "drop"}
    if isinstance(op, DropMessages):
        out["messages"] = list(op.messages)
    elif isinstance(op, DropTokens):
        out["tokens"] = [list(r) for r in op.ranges]
    elif isinstance(op, DropSelected):
        out["select"] = str(op.selector)
    elif isinstance(op, ReplaceMessage):
        text = isinstance(op.replacement, str)
        out = {"op": "replace", "message": op.message}
        out["content" if text else "tokens"] = op.replacement if text else list(op.replacement)
    elif isinstance(op, ReplaceSelected):
        out = {"op": "replace", "select": str(op.selector), "content": op.replacement}
    if op.at is not None:
        out["at"] = op.at
    return out


def from_stored(stored: Sequence[Mapping[str, Any]]) -> list[MessageOp]:
    """Read what `to_stored` wrote: the wire's operations, and replacements by tokens, which no request may send."""
    out: list[MessageOp] = []
    for i, body in enumerate(stored):
        label = f"stored operation {i}"
        if body.get("op") == "replace" and "tokens" in body:
            tokens = tuple(_wholes(body["tokens"], f"{label}: tokens"))
            at = None if body.get("at") is None else _whole(body["at"], f"{label}: at")
            out.append(ReplaceMessage(_whole(body.get("message"), label), tokens, at=at, label=label))
        else:
            out.append(_operation(body, label))
    return out


def _operation(body: Mapping[str, Any], label: str) -> MessageOp:
    if not isinstance(body, Mapping):
        raise BadRequest(f"{label}: isn't an object", hint='e.g. {"op": "drop", "messages": [3]}')
    kind = body.get("op")
    if not isinstance(kind, str) or kind not in _FIELDS:
        hint = nearest(str(kind), _FIELDS) or f"operations are {', '.join(_FIELDS)}"
        raise BadRequest(f"{label}: there is no operation {kind!r}", hint=hint)
    for name in body:
        if name not in _FIELDS[kind]:
            hint = nearest(str(name), _FIELDS[kind]) or f"it has {', '.join(_FIELDS[kind][1:])}"
            raise BadRequest(f"{label} ({kind}): there is no field {name!r}", hint=hint)
    at = body.get("at")
    if at is not None:
        at = _whole(at, f"{label} ({kind}): at")
    if kind == "repos":
        return ReposAt(at=at, label=label)
    return (_drop if kind == "drop" else _replace)(body, at, label)


def _drop(body: Mapping[str, Any], at: int | None, label: str) -> MessageOp:
    name = _only(body, ("messages", "select", "tokens"), f"{label} (drop)")
    value = body[name]
    if name == "select":
        return DropSelected(_selector(value, label), at=at, label=label)
    if name == "messages":
        return DropMessages(tuple(_wholes(value, f"{label} (drop): messages")), at=at, label=label)
    return DropTokens(tuple(_ranges(value, f"{label} (drop): tokens")), at=at, label=label)


def _replace(body: Mapping[str, Any], at: int | None, label: str) -> MessageOp:
    name = _only(body, ("message", "select"), f"{label} (replace)")
    content = body.get("content")
    if not isinstance(content, str):
        raise BadRequest(f"{label} (replace): content isn't a text", hint="it is the message's new text")
    if name == "message":
        message = _whole(body[name], f"{label} (replace): message")
        return ReplaceMessage(message, content, at=at, label=label)
    selector = _selector(body[name], label)
    if isinstance(selector, ByTokens) or (isinstance(selector, BySlice) and selector.kind == "thinking"):
        raise BadRequest(f"{label} (replace): {selector} can't be replaced", hint="only whole messages can")
    return ReplaceSelected(selector, content, at=at, label=label)


def _only(body: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    given = [name for name in names if name in body]
    if len(given) != 1:
        what = " and ".join(given) if given else "nothing"
        raise BadRequest(f"{where}: names {what} to work on", hint=f"give exactly one of {', '.join(names)}")
    return given[0]


def _selector(value: Any, label: str) -> Selector:
    if not isinstance(value, str):
        raise BadRequest(f"{label}: select isn't a text", hint='e.g. "tool[:-12]"')
    try:
        return parse(value)
    except BadRequest as error:
        raise BadRequest(f"{label}: select {value!r}: {error.message}", hint=error.hint) from error


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{where} is {value!r}, which isn't a whole number")
    return value


def _wholes(value: Any, where: str) -> Iterable[int]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadRequest(f"{where} is {value!r}, which isn't a list of whole numbers")
    return (_whole(v, f"{where}[{i}]") for i, v in enumerate(value))


def _ranges(value: Any, where: str) -> Iterable[Range]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadRequest(f"{where} is {value!r}, which isn't a list of [first, end) pairs")
    for i, pair in enumerate(value):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise BadRequest(f"{where}[{i}] is {pair!r}, which isn't a pair [first, end)")
        yield _whole(pair[0], f"{where}[{i}][0]"), _whole(pair[1], f"{where}[{i}][1]")


def from_akv(drop_message: Any, reposition: Any, drop_rule: Any, *, message_count: int) -> Asked:
    """Read AKV's fields: an operation takes effect right before its trigger message.

    A trigger beyond the history is ignored, and a note says so. At one trigger the drop comes before the repos.
    """
    notes: list[str] = []

    def placed(trigger: int, label: str) -> bool:
        if trigger > message_count:
            notes.append(f"{label}: message {trigger} is beyond the history of {message_count}; ignored")
        return trigger <= message_count

    drops = [op for at, op in _akv_drops(drop_message) if placed(at, op.label)]
    moves = [op for at, op in _akv_repos(reposition) if placed(at, op.label)]
    ops = sorted([*drops, *moves], key=_place)
    if len(ops) > MAX_OPS:
        raise BadRequest(f"drop_message and reposition hold {len(ops)} operations; at most {MAX_OPS} are taken")
    return Asked(tuple(ops), _rule_policy(drop_rule) if drop_rule else None, tuple(notes))


def _place(op: MessageOp) -> int:
    return op.at or 0


def _akv_drops(field: Any) -> Iterable[tuple[int, MessageOp]]:
    if field is not None and not isinstance(field, Mapping):
        raise BadRequest("drop_message isn't an object", hint='e.g. {"8": [3, 4]}')
    for key, value in (field or {}).items():
        label = f'drop_message["{key}"]'
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 12):
            raise BadRequest(f"{label}: the trigger isn't the number of a message")
        messages = tuple(dict.fromkeys(_wholes(value, label)))
        if messages:
            yield int(key), DropMessages(messages, at=int(key), label=label)


def _akv_repos(field: Any) -> Iterable[tuple[int, MessageOp]]:
    if field is None:
        return
    for i, at in enumerate(_wholes(field, "reposition")):
        if at < 0:
            raise BadRequest(f"reposition[{i}] is {at}; the first message is 0")
        yield at, ReposAt(at=at, label=f"reposition[{i}]")


def _rule_policy(rule: Any) -> Policy:
    """Return the policy that a drop_rule means: the newest N of a role stay."""
    understood = '{"role": "tool", "keep_last": 12} and {"type": "tool_rolling", "keep": 12}'
    readers: Mapping[frozenset[str], Callable[[Mapping[str, Any]], tuple[Any, Any]]] = {
        frozenset({"role", "keep_last"}): lambda r: (r["role"], r["keep_last"]),
        frozenset({"type", "keep"}): lambda r: ("tool" if r["type"] == "tool_rolling" else None, r["keep"]),
    }
    reader = readers.get(frozenset(rule)) if isinstance(rule, Mapping) else None
    role, keep = reader(rule) if reader is not None else (None, None)
    roles = [r.value for r in _COUNT_OF_ROLE]
    if role not in roles:
        raise BadRequest(
            f"drop_rule {rule!r} isn't known", hint=f"understood are {understood}; roles {', '.join(roles)}"
        )
    kept = _whole(keep, "drop_rule: how many to keep")
    if kept < 0:
        raise BadRequest(f"drop_rule keeps {kept}; it can't be less than 0")
    rest = BySlice(role, end=-kept if kept else None, sliced=True)
    condition = Condition(_COUNT_OF_ROLE[Role(role)], ">", kept)
    return Policy(f"drop_rule:{role}", rules=(Rule(1, (condition,), rest),))
