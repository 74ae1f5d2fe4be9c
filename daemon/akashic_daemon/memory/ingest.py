"""What comes into memory: text that memory itself put into a conversation is left out, and so is text without words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from akashic_daemon.memory.answers import Remembered
from akashic_daemon.memory.chunks import cut_what_is_full
from akashic_daemon.memory.memory import Memory, Said
from akashic_daemon.memory.recalled import without_recalled, without_told


def remember(memory: Memory, namespace: str, source: str, said: Sequence[Said]) -> Remembered:
    """Store messages of one source in the order they were said. Giving them again changes nothing."""
    store = memory.store
    wanted: list[Said] = []
    recalled = 0
    for message in said:
        text = without_told(without_recalled(message.text), lambda who, words: store.has_said(namespace, who, words))
        recalled += text != message.text
        if text.strip():
            wanted.append(message if text == message.text else replace(message, text=text))
    added = memory.add(namespace, source, wanted)
    if added.new_ids:
        cut_what_is_full(memory, namespace)
    return Remembered(added.turn_ids, added.new_ids, recalled)
