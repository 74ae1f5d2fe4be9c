"""The piece copier: a few programs walk over all pieces' chunks, reading or writing pinned host memory in place."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_pieces_kernel(
    source,
    source_index,
    target,
    target_index,
    chunk_count,
    PIECE: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS_PER_PIECE: tl.constexpr,
):
    """Copy chunks of CHUNK int32 words; PIECE words make a piece, piece i goes from source_index[i] to target_index[i].

    A piece whose source index is negative is left out.
    """
    lane = tl.arange(0, CHUNK)
    for chunk in range(tl.program_id(0), chunk_count, tl.num_programs(0)):
        piece = chunk // CHUNKS_PER_PIECE
        word = (chunk % CHUNKS_PER_PIECE) * CHUNK + lane
        origin = tl.load(source_index + piece).to(tl.int64) * PIECE
        place = tl.load(target_index + piece).to(tl.int64) * PIECE
        copied = (word < PIECE) & (origin >= 0)
        words = tl.load(source + origin + word, mask=copied, eviction_policy="evict_first")
        tl.store(target + place + word, words, mask=copied)
