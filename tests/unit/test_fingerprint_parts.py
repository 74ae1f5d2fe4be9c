"""Two fingerprints are told apart in words."""

from __future__ import annotations

import pytest

from akashic_daemon.engine.fake import FakeEngine
from akashic_daemon.engine.parts import difference, parts, parts_of

ONE = {"model": "m", "kv_type": "f16", "weights": f"weights1:{'a' * 32}", "tokenizer": f"tokenizer1:{'a' * 32}"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_type": "q8_0"}, "KV type f16 -> q8_0"),
        ({"weights": f"weights1:{'b' * 32}"}, "model file changed"),
        ({"weights": f"weights1:{'b' * 32}", "kv_type": "f32"}, "model file changed, KV type f16 -> f32"),
        ({"model": "n", "weights": f"weights1:{'b' * 32}", "tokenizer": "other"}, "model m -> n"),
        ({"model": "n", "kv_type": "f32"}, "model m -> n, KV type f16 -> f32"),
        ({"rope": "freq_base=1"}, "rope parameters changed"),
        ({}, "something changed that was not recorded"),
    ],
)
def test_each_change_is_named(change: dict[str, str], said: str) -> None:
    assert difference(ONE, {**ONE, **change}) == said


def test_a_loaded_models_parts_have_its_name_template_and_whatever_its_engine_says() -> None:
    said = parts("weights1:x", {"fused_attention": True, "context_tokens": 8, "rope": None})
    assert said == {"weights": "weights1:x", "fused_attention": "on", "context_tokens": "8", "rope": "None"}
    whole = parts_of(FakeEngine().model)
    assert whole["model"] == "fake"
    assert whole["chat_template"].startswith("template1:")
