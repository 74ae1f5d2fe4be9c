"""The planner's arithmetic: shapes as files describe them, the roofline's laws, the search, published figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akashic_daemon.errors import BadModelFile, EngineError, Unsupported, UsageError
from akashic_daemon.planner.fitting import Point, errors, fit
from akashic_daemon.planner.machines import DESCRIBED, from_json
from akashic_daemon.planner.plan import fits, tiers, variants
from akashic_daemon.planner.published import compare
from akashic_daemon.planner.reading import read_shape
from akashic_daemon.planner.roofline import Setup, breakeven_tokens, decode_step, prefill
from akashic_daemon.planner.shapes import NAMED
from akashic_daemon.planner.sweep import Limits, sweep

LLAMA, H100 = NAMED["llama-3.1-8b"], DESCRIBED["h100"]
CONFIG = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def test_known_shapes_have_the_parameters_that_their_names_say() -> None:
    assert LLAMA.parameters == pytest.approx(8.03e9, rel=0.001)
    assert NAMED["llama-3.1-70b"].parameters == pytest.approx(70.55e9, rel=0.001)
    assert NAMED["smollm2-135m"].parameters == pytest.approx(134.5e6, rel=0.001)
    assert LLAMA.kv_bytes_per_token("f16") == 131072
    assert LLAMA.kv_bytes_per_token("q8_0") == 131072 * 34 / 64


def test_a_config_and_a_folder_give_the_shape_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    for found in (read_shape(str(path)), read_shape(str(tmp_path))):
        assert replace(found, name=LLAMA.name) == LLAMA


def test_a_gguf_is_planned_with_the_bytes_that_its_tensors_really_take(tiny_gguf: Path) -> None:
    shape = read_shape(str(tiny_gguf))
    assert 0 < shape.step_weight_bytes <= shape.resident_weight_bytes == tiny_gguf.stat().st_size
    assert shape.kv_bytes_per_token("f16") == 2 * shape.layers * shape.kv_heads * shape.head_width * 2


@pytest.mark.parametrize(
    ("content", "kind", "match"),
    [
        ("{", BadModelFile, "config.json"),
        ("[]", BadModelFile, "no JSON object"),
        (json.dumps({**CONFIG, "num_local_experts": 8}), Unsupported, "8 experts"),
        (json.dumps({**CONFIG, "hidden_size": None}), UsageError, "hidden_size"),
        (json.dumps({**CONFIG, "intermediate_size": [1, 2]}), UsageError, "no whole number"),
        (json.dumps({**CONFIG, "num_hidden_layers": 0}), UsageError, "layers is 0"),
    ],
)
def test_a_config_that_cannot_be_planned_is_refused_by_name(
    tmp_path: Path, content: str, kind: type[Exception], match: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(kind, match=match):
        read_shape(str(path))


def test_unknown_models_and_formats_name_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gpt-9.*llama-3\.1-8b"):
        read_shape("gpt-9")
    with pytest.raises(UsageError, match=r"q9.*q8_0"):
        Setup(10, kv_format="q9")
    with pytest.raises(BadModelFile, match=r"none\.gguf"):
        read_shape(str(tmp_path / "none.gguf"))


def test_a_long_context_is_bound_by_kv_and_a_short_one_by_weights() -> None:
    assert decode_step(LLAMA, H100, Setup(1024)).bound_by == "weights' bandwidth"
    assert decode_step(LLAMA, H100, Setup(1 << 18)).bound_by == "KV bandwidth"
    assert prefill(LLAMA, H100, 8192, Setup(8192)).bound_by == "matrix products"


@settings(deadline=None)
@given(st.integers(1, 1 << 18), st.integers(1, 64), st.sampled_from(["f16", "q8_0", "f32"]), st.integers(0, 64))
def test_more_context_or_sequences_never_make_a_step_faster(context: int, batch: int, kv: str, sparse: int) -> None:
    step = decode_step(LLAMA, H100, Setup(context, batch, kv, sparse)).seconds
    assert step <= decode_step(LLAMA, H100, Setup(context, batch + 1, kv, sparse)).seconds * (1 + 1e-12)
    assert step <= decode_step(LLAMA, H100, Setup(context, batch, kv, 0)).seconds * 1.02
    assert (
        decode_step(LLAMA, H100, Setup(context, batch, kv)).seconds
        <= decode_step(LLAMA, H100, Setup(context + 1, batch, kv)).seconds
    )


@settings(deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_a_prefill_in_two_parts_computes_what_the_whole_one_does(first: int, second: int) -> None:
    machine = replace(H100, layer_s=0.0, stream=1e30, kv_stream=1e30, flops=1e15)
    setup = Setup(first + second)
    whole = prefill(LLAMA, machine, first + second, setup).parts["attention"]
    parts = prefill(LLAMA, machine, first, setup).parts["attention"]
    parts += prefill(LLAMA, machine, second, setup, history_tokens=first).parts["attention"]
    assert parts == pytest.approx(whole, rel=1e-9)


def test_what_fits_fills_memory_to_the_last_token() -> None:
    most = fits(LLAMA, H100, Setup(8192))["most_tokens"]
    assert fits(LLAMA, H100, Setup(most))["fits"]
    assert not fits(LLAMA, H100, Setup(most + 1))["fits"]


def test_variants_are_as_many_times_faster_as_their_bytes_are_fewer() -> None:
    plain, kv8, weights4, sparse, every = variants(LLAMA, replace(H100, layer_s=0.0), Setup(1 << 17))
    read = LLAMA.step_weight_bytes + (1 << 17) * 131072
    assert kv8["tokens_per_s"] / plain["tokens_per_s"] == pytest.approx(
        read / (LLAMA.step_weight_bytes + (1 << 17) * 131072 * 34 / 64)
    )
    assert plain["tokens_per_s"] < weights4["tokens_per_s"] < sparse["tokens_per_s"] < every["tokens_per_s"]


def test_a_tier_pays_from_where_reading_is_faster_than_computing() -> None:
    setup = Setup(32768)
    rows = {row["tier"]: row for row in tiers(LLAMA, H100, setup, sessions=40)}
    assert rows["ram"]["pays"]
    waiting = 40 * 32768 * 131072 - fits(LLAMA, H100, setup)["most_tokens"] * 131072
    assert rows["ram"]["useful_bytes"] == pytest.approx(waiting, rel=0.01)
    assert rows["ssd"]["useful_bytes"] == 0
    slow = replace(H100.tiers[1], read_bytes_per_s=1e6)
    assert breakeven_tokens(LLAMA, H100, slow, setup) is None


def test_the_best_setup_keeps_to_every_limit_and_no_other_that_does_is_faster() -> None:
    found = sweep(LLAMA, H100, 32768, Limits(40e9, 0.02, 3.0, 1.0), reused_tokens=0, exact_only=False)
    best = found["best"]
    assert best["step_s"] <= 0.02
    assert best["ttft_s"] <= 3.0
    assert best["weight_bytes"] + best["kv_bytes"] < 40e9
    within = [row for row in found["rows"] if not row["breaks"]]
    assert max(row["tokens_per_s"] for row in within) <= best["tokens_per_s"] / 0.98
    assert sweep(LLAMA, H100, 32768, Limits(10e6), reused_tokens=0, exact_only=True)["best"] is None


def test_a_price_limit_needs_a_price() -> None:
    with pytest.raises(UsageError, match="price-per-hour"):
        sweep(
            LLAMA,
            replace(H100, price_per_hour=0.0),
            8192,
            Limits(price_per_million=1.0),
            reused_tokens=0,
            exact_only=True,
        )


def test_published_figures_are_met_within_their_goals() -> None:
    rows = compare()
    assert {row["source"] for row in rows} == {"PLENA, A100", "torch engine, H200 (README)"}
    for row in rows:
        assert abs(row["error"]) < (0.3 if "PLENA" in row["source"] else 0.2), row


@pytest.mark.parametrize("overlaps", [True, False])
def test_fitting_finds_the_rates_that_points_were_made_with(overlaps: bool) -> None:
    shape = NAMED["smollm2-135m"].quantised("q4_1")
    true = replace(
        H100,
        stream=5e9,
        kv_stream=3e9,
        flops=5e10,
        attention_flops=2e10,
        layer_s=0.0,
        origin="fitted to this machine's engine",
        overlaps=overlaps,
    )
    kinds = [
        ("decode", 1, 32, 1, True), ("decode", 1, 1024, 1, True), ("prefill", 256, 0, 1, True), ("prefill", 256, 1024, 1, True),
        ("decode", 1, 64, 4, True), ("decode", 1, 4096, 1, False), ("prefill", 1024, 2048, 1, False), ("decode", 1, 256, 2, False),
    ]  # fmt: skip
    points = []
    for kind, new, history, sequences, fitted in kinds:
        point = Point(kind, new, history, sequences, 0.0, fitted)
        points.append(replace(point, seconds=point.predicted_s(shape, true, "f16")))
    found = fit(shape, replace(H100, name="here"), points, "f16")
    assert found.overlaps is overlaps
    for rate in ("stream", "kv_stream", "flops", "attention_flops"):
        assert getattr(found, rate) == pytest.approx(getattr(true, rate), rel=0.02), rate
    assert max(abs(row["error"]) for row in errors(shape, found, points, "f16")) < 0.02
    with pytest.raises(EngineError, match="0 prefill"):
        fit(shape, H100, points[:2], "f16")


def test_a_machine_survives_its_file_and_a_broken_one_is_refused() -> None:
    assert from_json(json.loads(json.dumps(H100.to_json()))) == H100
    for broken in ({}, {**H100.to_json(), "flops": 0}, {**H100.to_json(), "wheels": 4}):
        with pytest.raises(UsageError, match="machine"):
            from_json(broken)
