"""The embedder that comes with the package: static vectors of the tokens, from the files in wordllama's wheel.

The two files are read as they are, and wordllama itself is not imported: it sets up logging for the whole process,
looks for its tokenizer in another folder than its wheel has, and then tries a download. The vectors are the same. The
table is mapped, not read: 16 MB of the page cache, shared by all processes.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from akashic_daemon.errors import ModelError
from akashic_daemon.memory.embedder import TokenIds, Vectors, pooled
from akashic_daemon.memory.word_tokens import WordTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "wordllama"
_WEIGHTS = Path("weights/l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers/l2_supercat_tokenizer_config.json")
_TENSOR = "embedding.weight"
_MOST_HEADER_BYTES = 1 << 20


class StaticVectors:
    """Looks each token's vector up in a table and pools them."""

    name = NAME

    def __init__(self, table: NDArray[np.float16], tokenizer: Tokenizer) -> None:
        self._table = table
        self._words = WordTokens(tokenizer)

    @property
    def dimensions(self) -> int:
        """Length of its vectors."""
        return int(self._table.shape[1])

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""
        return int(self._table.shape[0])

    def token_ids(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return each text's ids, unpadded."""
        last = self.vocabulary_size - 1
        return [ids if not len(ids) or ids.max() <= last else np.minimum(ids, last) for ids in self._words.ids(texts)]

    def pool(self, ids: Sequence[TokenIds], weights: NDArray[np.float32] | None = None) -> Vectors:
        """Return a vector of length 1 for each text's ids."""
        return pooled(self._table, ids, weights)


def folder() -> Path | None:
    """Return where wordllama is installed; None when it isn't. Imports nothing."""
    found = importlib.util.find_spec(NAME)
    places = [] if found is None else list(found.submodule_search_locations or ())
    return Path(places[0]) if places else None


def load(package: Path | None = None) -> StaticVectors:
    """Open the vectors, by default those of the installed package. Raises ModelError when files are missing or broken."""
    from tokenizers import Tokenizer  # a tenth of a second that only those wait for who embed

    package = package or folder()
    doing = f"loading the embedder {NAME}"
    if package is None:
        raise ModelError(f"{doing}: its package is not installed", hint="`pip install wordllama`")
    try:
        tokenizer = Tokenizer.from_file(str(package / _TOKENIZER))
    except Exception as error:
        # The library raises bare Exceptions.
        raise ModelError(
            f"{doing}: its tokenizer: {error}", hint="`pip install --force-reinstall wordllama`"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        table = _mapped(package / _WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{doing}: its vectors: {error!r}", hint="`pip install --force-reinstall wordllama`"
        ) from error
    return StaticVectors(table, tokenizer)


def _mapped(path: Path) -> NDArray[np.float16]:
    """Map the table of a safetensors file: a header's length, the header as JSON, the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        tensor = json.loads(file.read(length))[_TENSOR]
    rows, columns = (int(n) for n in tensor["shape"])
    begin, end = (int(n) for n in tensor["data_offsets"])
    if tensor["dtype"] != "F16" or end - begin != 2 * rows * columns or path.stat().st_size < 8 + length + end:
        raise ValueError(f"{tensor}, in a file of {path.stat().st_size} bytes")
    return np.memmap(path, np.float16, "r", 8 + length + begin, (rows, columns))
