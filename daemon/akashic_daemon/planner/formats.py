"""What a value takes in each format of weights and of KV, block scales included."""

from __future__ import annotations

from akashic_daemon.errors import UsageError

BITS = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "int4": 4.0,
    "mxint4": 4.25,
    "q8_0": 8.5,
    "q6_k": 6.5625,
    "q5_k": 5.5,
    "q4_k": 4.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
}
"""Bits a value. Those of GGUF's formats are exact; the plain ones carry no scales of their own."""


def bytes_per_value(name: str) -> float:
    """Return what a value takes. Raises UsageError on an unknown format."""
    if name.lower() not in BITS:
        raise UsageError(f"planning with the format {name!r}: it is unknown", hint=f"one of {', '.join(BITS)}")
    return BITS[name.lower()] / 8
