"""Moves of scattered pieces between pinned host memory and GPU pages, on the current stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from akashic_kernels.backend import Backend, choose, launching, power_of_two
from akashic_kernels.kv_gather.reference import copy_pieces
from akashic_kernels.kv_gather.validation import check_pieces

if TYPE_CHECKING:
    from torch import Tensor

PROGRAMS = 32
"""Enough to fill the link (kernels/bench/gather_pieces.py), and few enough to leave the GPU to others."""
CHUNK_WORDS = 2048


def kv_gather(
    host: Tensor,
    host_index: Tensor,
    pages: Tensor,
    page_index: Tensor,
    *,
    programs: int = PROGRAMS,
    backend: Backend | None = None,
) -> None:
    """Let pages[page_index[i]] be host[host_index[i]] for each i, asynchronously; `page_index` names no piece twice.

    `host` [pieces, ...] is pinned and must stay so until the stream has passed; `pages` [pieces, ...] has pieces of the
    same shape and type. Indices lie beside the pages and are not checked: an index outside its pool is memory's ruin. A
    negative source index leaves its piece out, so that a list of fixed length serves a graph.
    `programs` bounds the share of the GPU that the move takes.
    """
    words = check_pieces("kv_gather", host, host_index, pages, page_index, programs)
    if choose("kv_gather", pages, backend) == "reference":
        copy_pieces(host, host_index, pages, page_index)
        return
    _launch("kv_gather", host, host_index, pages, page_index, words, programs)


def kv_scatter(
    pages: Tensor,
    page_index: Tensor,
    host: Tensor,
    host_index: Tensor,
    *,
    programs: int = PROGRAMS,
    backend: Backend | None = None,
) -> None:
    """Let host[host_index[i]] be pages[page_index[i]] for each i; the converse of `kv_gather`, under the same terms.

    The host may read only after the stream has passed (an event, or synchronize).
    """
    words = check_pieces("kv_scatter", host, host_index, pages, page_index, programs)
    if choose("kv_scatter", pages, backend) == "reference":
        copy_pieces(pages, page_index, host, host_index)
        return
    _launch("kv_scatter", pages, page_index, host, host_index, words, programs)


def _launch(
    kernel: str, source: Tensor, source_index: Tensor, target: Tensor, target_index: Tensor, words: int, programs: int
) -> None:
    import torch

    from akashic_kernels.kv_gather.triton import copy_pieces_kernel

    chunk = min(CHUNK_WORDS, power_of_two(words))
    per_piece = -(-words // chunk)
    chunks = source_index.shape[0] * per_piece
    if not chunks:
        return
    with launching(kernel):
        copy_pieces_kernel[(min(programs, chunks),)](
            source.view(-1).view(torch.int32), source_index, target.view(-1).view(torch.int32), target_index, chunks,
            PIECE=words, CHUNK=chunk, CHUNKS_PER_PIECE=per_piece, num_warps=4,
        )  # fmt: skip
