"""Token ids of texts, word by word: what a word is in tokens is looked up when it was seen before.

That is the same as the tokenizer's own answer where spaces stand at the beginning of tokens only, as in SentencePiece's
vocabularies; `are_words_apart` tells. Other tokenizers, and texts that look like special tokens, are asked as a whole.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPACE = "\u2581"
_PIECE = re.compile(" *[^ ]+| +")
_MOST_BYTES = 8 << 20
"""What the words that are remembered may take, about; then all are forgotten."""
_ENTRY_BYTES, _CHAR_BYTES = 160, 5


class WordTokens:
    """A tokenizer with a memory for words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_by_words = are_words_apart(tokenizer)
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self._special = re.compile("|".join(map(re.escape, [*special, _SPACE])))
        self._known: dict[str, bytes] = {}
        self._known_bytes = 0

    def ids(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return each text's ids, without special tokens around them; an empty text has none."""
        if not self._is_by_words:
            return [np.array(ids, np.int32) for ids in self._encoded(texts)]
        words = [None if self._special.search(text) else _words(text) for text in texts]
        known = self._learn({word for own in words if own is not None for word in own})
        wholes = iter(self._encoded([text for text, own in zip(texts, words, strict=True) if own is None]))
        return [
            np.array(next(wholes), np.int32)
            if own is None
            else np.frombuffer(b"".join(map(known.__getitem__, own)), np.int32)
            for own in words
        ]

    def _learn(self, words: set[str]) -> dict[str, bytes]:
        """Return what is known, these words among it."""
        if self._known_bytes > _MOST_BYTES:
            self._known, self._known_bytes = {}, 0
        known = self._known
        unknown = list(words.difference(known))
        for word, ids in zip(unknown, self._encoded(unknown), strict=True):
            known[word] = array("i", ids).tobytes()
        if "" in unknown:  # a space at a text's end: nothing would be encoded
            space = self._tokenizer.token_to_id(_SPACE)
            assert space is not None  # or words wouldn't be apart
            known[""] = array("i", [space]).tobytes()
        self._known_bytes += sum(_ENTRY_BYTES + _CHAR_BYTES * len(word) for word in unknown)
        return known

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def are_words_apart(tokenizer: Tokenizer) -> bool:
    """Tell if a space can stand at the beginning of a token only, so that no token reaches into the next word."""
    normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None or normalizer is None:
        return False
    if normalizer.normalize_str("a  b ") != f"{_SPACE}a{_SPACE}{_SPACE}b{_SPACE}":
        return False
    return _SPACE in (vocabulary := tokenizer.get_vocab()) and not any(
        _SPACE in token.lstrip(_SPACE) for token in vocabulary
    )


def _words(text: str) -> list[str]:
    """Cut a text before spaces. Of each piece one space is left out, which the tokenizer puts before every text."""
    if not text:
        return []
    if "  " not in text and text[0] != " ":
        return text.split(" ")
    return [piece[1:] for piece in _PIECE.findall(" " + text)]
