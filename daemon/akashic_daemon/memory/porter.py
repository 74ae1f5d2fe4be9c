"""English word stems by Porter's algorithm (Program 14(3), 1980), so that "painting" finds "painted".

Words with other than the letters a to z, and words of up to two letters, stay as they are.
"""

from __future__ import annotations

import re
from functools import lru_cache

_KNOWN = 1 << 17
_VOWEL = re.compile(r"[aeiou]|(?<=[^aeiou])y")
_LETTERS = re.compile(r"[a-z]{3,}")
_STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("abli", "able"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"),
)  # fmt: skip
_STEP_3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


@lru_cache(maxsize=_KNOWN)
def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    if not _LETTERS.fullmatch(word):
        return word
    word = _past(_plural(word))
    if word.endswith("y") and _VOWEL.search(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2)
    word = _replaced(word, _STEP_3)
    return _tidy(_without_suffix(word))


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and _VOWEL.search(word[: -len(ending)]):
            base = word[: -len(ending)]
            if base.endswith(("at", "bl", "iz")):
                return base + "e"
            if len(base) > 1 and base[-1] == base[-2] and base[-1] not in "aeioulsz":
                return base[:-1]
            return base + "e" if _measure(base) == 1 and _ends_cvc(base) else base
    return word


def _replaced(word: str, endings: tuple[tuple[str, str], ...]) -> str:
    """Replace the longest of the endings, where enough stands before it."""
    fits = [(old, new) for old, new in endings if word.endswith(old)]
    if not fits:
        return word
    old, new = max(fits, key=lambda pair: len(pair[0]))
    base = word[: -len(old)]
    return base + new if _measure(base) > 0 else word


def _without_suffix(word: str) -> str:
    fits = [ending for ending in _STEP_4 if word.endswith(ending)]
    if not fits:
        return word
    ending = max(fits, key=len)
    base = word[: -len(ending)]
    return base if _measure(base) > 1 and (ending != "ion" or base.endswith(("s", "t"))) else word


def _tidy(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _shape(word: str) -> str:
    shape = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Count how often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _ends_cvc(word: str) -> bool:
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"
