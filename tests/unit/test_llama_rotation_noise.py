"""An engine's own rounding isn't taken for a wrong rotation, and a wrong rotation not for rounding."""

from __future__ import annotations

import numpy as np
import pytest

from akashic_daemon.engine.llama_cpp.rope import Layout, Rope
from akashic_daemon.engine.llama_cpp.rotation_check import _disagreement

RIGHT = Rope(10000.0 ** (-np.arange(0, 64, 2) / 64), Layout.NEOX, 64)
WRONG = Rope(20000.0 ** (-np.arange(0, 64, 2) / 64), Layout.NEOX, 64)
POSITIONS = [0, 7, 2730, 8191]


def keys(noise: float) -> list[np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    """Return K of three heads at each position, turned rightly, with errors of so much of the largest value."""
    chance = np.random.default_rng(5)
    first = chance.standard_normal((3, 64)).astype(np.float32)
    out = []
    for position in POSITIONS:
        wobble = chance.standard_normal(first.shape).astype(np.float32) * noise * np.abs(first).max()
        out.append(RIGHT.rotate((first + (wobble if position else 0))[None], np.array([position]))[0])
    return out


@pytest.mark.parametrize("noise", [0.0, 0.0005, 0.002, 0.005])
def test_rounding_that_changes_lengths_as_well_is_allowed(noise: float) -> None:
    assert _disagreement(RIGHT, "f16", POSITIONS, keys(noise)) is None


@pytest.mark.parametrize("noise", [0.0, 0.0005, 0.002, 0.005])
def test_another_rotation_is_refused_with_and_without_noise(noise: float) -> None:
    assert _disagreement(WRONG, "f16", POSITIONS, keys(noise)) is not None


def test_more_than_a_small_error_is_no_rounding() -> None:
    assert _disagreement(RIGHT, "f16", POSITIONS, keys(0.1)) is not None
