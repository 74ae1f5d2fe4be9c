"""Why a prompt could not reuse more: compares it with what the same session asked before."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from akashic_daemon.cache.index import common_length
from akashic_daemon.protocol.native import Miss

_QUOTED_TOKENS = 12


def explain_miss(
    prompt: array[int],
    reused: int,
    earlier: array[int] | None,
    *,
    message_at: Sequence[int],
    window_moved: bool,
    to_text: Callable[[Sequence[int]], str],
) -> Miss | None:
    """Say why reuse ended at `reused`; None when the prompt only grew.

    earlier: the session's last prompt and answer as far as they were computed, and the one token sampled after that;
    None for a new session. message_at: the message that owns each token.
    """
    if earlier is None:
        cause = "new_session" if reused else "cold"
        return Miss(cause=cause, at_token=reused, at_message=_owner(message_at, reused))
    same = common_length(prompt, earlier)
    if same >= len(prompt) - 1 and reused >= same - 1:
        return None
    held = min(same, len(prompt) - 1, len(earlier) - 1)
    if reused < held:
        return Miss(cause="evicted", at_token=reused, at_message=_owner(message_at, reused), could_reuse=held)
    if same >= len(earlier):
        return None
    expected, got = to_text(earlier[same : same + _QUOTED_TOKENS]), to_text(prompt[same : same + _QUOTED_TOKENS])
    cause = "window_moved" if window_moved else ("tokenization_differs" if _alike(expected, got) else "text_differs")
    return Miss(cause=cause, at_token=same, at_message=_owner(message_at, same), expected=expected, got=got)


def _alike(a: str, b: str) -> bool:
    short = min(len(a), len(b)) - 4
    return short > 4 and a[:short] == b[:short]


def _owner(message_at: Sequence[int], token: int) -> int | None:
    return message_at[token] if token < len(message_at) else None
