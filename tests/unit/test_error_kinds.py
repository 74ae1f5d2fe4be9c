"""Errors by their codes: what the man page lists and what a client rebuilds."""

from __future__ import annotations

from akashic_daemon.cache.operations import Lost, NoRoom
from akashic_daemon.errors import EngineError, error_kinds, from_wire


def test_a_code_that_several_kinds_share_stands_for_the_widest_of_them() -> None:
    """Whatever modules were imported: the last one told what the code means, in the man page and to clients."""
    assert NoRoom.code == Lost.code == EngineError.code
    by_code = {kind.code: kind for kind in error_kinds()}
    assert by_code["engine"] is EngineError
    assert type(from_wire(EngineError("it failed", hint="look").to_wire())) is EngineError
