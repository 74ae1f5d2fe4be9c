"""Comparing next-token distributions: float32 logits in, sums in float64 out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


def log_softmax(logits: FloatArray) -> FloatArray:
    """Turn logits [n, vocabulary] into log probabilities, in place."""
    logits -= logits.max(axis=1, keepdims=True)
    total = np.exp(logits).sum(axis=1, dtype=np.float64, keepdims=True)
    logits -= np.log(total).astype(np.float32)
    return logits


def surprise(log_probabilities: FloatArray, tokens: Sequence[int]) -> float:
    """Return the summed negative log-likelihood of `tokens`, in nats; row i is what was expected at token i."""
    rows = np.arange(len(tokens))
    return -float(log_probabilities[rows, np.asarray(tokens)].sum(dtype=np.float64))


def divergence(reference: FloatArray, other: FloatArray) -> float:
    """Return the summed KL(reference || other) over rows of log probabilities, in nats."""
    return float((np.exp(reference) * (reference - other)).sum(dtype=np.float64))
