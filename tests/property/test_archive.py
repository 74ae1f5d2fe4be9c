"""The file of a warm session: whatever is done to its bytes, what is read of it is what was written."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akashic_daemon.errors import TranscriptError
from akashic_daemon.protocol import archive
from akashic_daemon.protocol.archive import Damage, Kind, Part

KINDS = [kind for kind in Kind if kind not in (Kind.END, Kind.FAIL)]
PARTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=9), st.none()), max_size=3),
        st.binary(max_size=300) | st.binary(max_size=20).map(lambda b: b + archive._MARK + b),
    ),
    max_size=6,
)


def written(parts: list[tuple[Kind, dict[str, object], bytes]]) -> bytes:
    """Return a whole file."""
    pieces = [piece for kind, head, body in parts for piece in archive.part(kind, head, body)]
    return archive.begin() + b"".join(pieces) + b"".join(archive.part(Kind.END, {"messages": 1}))


def read(data: bytes) -> list[Part | Damage]:
    """Read a file."""
    return list(archive.read_parts(io.BytesIO(data), "it"))


def whole(found: list[Part | Damage]) -> list[tuple[str, dict[str, object], bytes]]:
    """Return what isn't damaged."""
    return [(f.kind, dict(f.head), f.body) for f in found if isinstance(f, Part)]


@given(PARTS)
def test_what_is_written_is_read(parts: list[tuple[Kind, dict[str, object], bytes]]) -> None:
    data = written(parts)
    found = read(data)
    assert whole(found) == [*parts, (Kind.END, {"messages": 1}, b"")]
    last = archive.last_part(data[-archive.TAIL_BYTES :])
    assert last is not None
    assert (last.kind, last.head) == (Kind.END, {"messages": 1})


@given(PARTS, st.data())
def test_a_changed_byte_costs_at_most_the_part_in_which_it_stands(
    parts: list[tuple[Kind, dict[str, object], bytes]], data: st.DataObject
) -> None:
    file = written(parts)
    at = data.draw(st.integers(len(archive.begin()), len(file) - 1))
    changed = file[:at] + bytes([file[at] ^ data.draw(st.integers(1, 255))]) + file[at + 1 :]
    found, wanted = whole(read(changed)), [*parts, (Kind.END, {"messages": 1}, b"")]
    ends = [p.end_bytes for p in read(file) if isinstance(p, Part)]
    hit = next(number for number, end in enumerate(ends) if at < end)
    assert found == wanted[:hit] + wanted[hit + 1 :]
    assert any(isinstance(f, Damage) for f in read(changed))


@given(PARTS, st.data())
def test_a_file_that_is_cut_gives_the_parts_before_the_cut_and_says_so(
    parts: list[tuple[Kind, dict[str, object], bytes]], data: st.DataObject
) -> None:
    file = written(parts)
    at = data.draw(st.integers(len(archive.begin()), len(file) - 1))
    ends = [p.end_bytes for p in read(file) if isinstance(p, Part)]
    found = read(file[:at])
    assert whole(found) == parts[: sum(end <= at for end in ends)]
    assert isinstance(found[-1], Damage)
    assert archive.last_part(file[:at][-archive.TAIL_BYTES :]) is None


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error_of_ours(noise: bytes) -> None:
    assert isinstance(read(archive.begin() + noise)[-1], Damage)
    assert archive.last_part(noise) is None
    with pytest.raises(TranscriptError, match="no exported session"):
        read(noise)


@given(st.binary(min_size=1, max_size=200_000))
def test_pieces_are_small_whatever_a_part_holds(body: bytes) -> None:
    pieces = list(archive.part(Kind.KV, {"key": "k"}, body))
    assert max(map(len, pieces)) <= 1 << 16
    assert b"".join(pieces).count(body) >= 1
