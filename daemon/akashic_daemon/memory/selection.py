"""Which turns a selector means."""

from __future__ import annotations

from collections.abc import Iterator

from akashic_daemon.errors import NotFound
from akashic_daemon.memory.answers import Selector, parse_reference
from akashic_daemon.memory.memory import Memory
from akashic_daemon.store.memory.rows import Turn

_PAGE_TURNS = 1000


def select(memory: Memory, selector: Selector) -> list[int]:
    """Return the turns that every given field agrees on. Raises NotFound for an id that doesn't exist."""
    spaces = list(memory.store.namespaces()) if selector.namespaces is None else list(selector.namespaces)
    chosen: set[int] | None = None

    def narrow(ids: set[int]) -> None:
        nonlocal chosen
        chosen = ids if chosen is None else chosen & ids

    if selector.ids:
        narrow({turn for text in selector.ids for turn in turns_named(memory, text)})
    if selector.session is not None:
        narrow(set(_of_session(memory, spaces, selector.session)))
    if selector.query is not None:
        narrow({span.turn.id for span in memory.search(spaces, selector.query, limit=selector.limit)})
    if chosen is None:
        found = {turn.id: turn for space in spaces for turn in turns_of(memory, space)}
    else:
        found = memory.store.turns(sorted(chosen))
    return sorted(turn.id for turn in found.values() if turn.namespace in spaces and _in_time(turn, selector))


def turns_named(memory: Memory, text: str) -> list[int]:
    """Return the turns of an id: itself, a chunk's, or those that a record rests on. Raises NotFound, BadRequest."""
    reference = parse_reference(text)
    if reference.kind == "c":
        memory.store.chunk(reference.number)
        return [turn.id for turn in memory.store.turns_of_chunk(reference.number)]
    if reference.kind == "r":
        return list(memory.store.record(reference.number).turn_ids)
    if reference.number not in memory.store.turns([reference.number]):
        raise NotFound(
            f"looking for turn {text}: there is none", hint="`akashic mem search` shows turns with their ids"
        )
    return [reference.number]


def turns_of(memory: Memory, namespace: str) -> Iterator[Turn]:
    """Yield all turns of a namespace, in order. Raises NotFound."""
    last = 0
    while page := memory.store.turns_of(namespace, after_id=last, limit=_PAGE_TURNS):
        yield from page
        last = page[-1].id


def _of_session(memory: Memory, spaces: list[str], session: str) -> Iterator[int]:
    for space in spaces:
        for turn in memory.store.turns_of_source(space, session):
            yield turn.id


def _in_time(turn: Turn, selector: Selector) -> bool:
    if selector.after_s is None and selector.before_s is None:
        return True
    at_s = turn.event_at_s
    if at_s is None:
        return False
    return (selector.after_s is None or at_s >= selector.after_s) and (
        selector.before_s is None or at_s < selector.before_s
    )
