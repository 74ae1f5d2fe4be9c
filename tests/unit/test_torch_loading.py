"""What the torch engine refuses to load, and that each refusal names what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("gguf")

from akashic_daemon.config import Config, ModelSection
from akashic_daemon.engine.host import configured_engines, engine_of
from akashic_daemon.engine.model_files import describe_model
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from akashic_daemon.engine.torch_engine.architecture import from_config
from akashic_daemon.engine.torch_engine.tokenizer import HfTokenizer
from akashic_daemon.errors import AkashicError, BadModelFile, ConfigError, ModelError, Unsupported
from tiny_gguf import Shape
from torch_folder import Tensors, config_of, tiny_tensors, write_folder

SHAPE = Shape()


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    return tiny_tensors(tmp_path_factory.mktemp("source"), SHAPE)


def load(folder: Path, **options: Any) -> TorchEngine:
    given: dict[str, Any] = {
        "kv_type": "f32", "kv_tokens": 256, "window_tokens": 256, "max_sequences": 2, "threads": 1, "device": "cpu",
    }  # fmt: skip
    return TorchEngine(TorchOptions(name="tiny", path=folder, **(given | options)), HfTokenizer(folder))


def test_a_missing_tensor_is_named(tmp_path: Path, tensors: Tensors) -> None:
    left = {n: t for n, t in tensors.items() if n not in ("lm_head.weight", "model.layers.1.mlp.up_proj.weight")}
    folder = write_folder(tmp_path / "m", left, config_of(SHAPE))
    with pytest.raises(ModelError, match=r"lm_head\.weight, model\.layers\.1\.mlp\.up_proj\.weight are missing"):
        load(folder)


def test_a_tensor_that_isnt_understood_is_named(tmp_path: Path, tensors: Tensors) -> None:
    odd = {**tensors, "model.layers.0.self_attn.sinks": np.ones(4, np.float32)}
    with pytest.raises(Unsupported, match=r"self_attn\.sinks is not known"):
        load(write_folder(tmp_path / "m", odd, config_of(SHAPE)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, tensors: Tensors, value: float) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    broken = tensors[name].copy()
    broken[3, 5] = value
    with pytest.raises(ModelError, match=re.escape(f"{name} holds NaN or infinite")):
        load(write_folder(tmp_path / "m", {**tensors, name: broken}, config_of(SHAPE)))


def test_a_tensor_of_another_size_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    with pytest.raises(ModelError, match=r"gate_proj\.weight is 128 x 64, not 96 x 64"):
        load(write_folder(tmp_path / "m", tensors, config_of(SHAPE, intermediate_size=96)))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"model_type": None}, "architecture"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}}, "mscale"),
    ],
)
def test_what_isnt_known_for_certain_is_unsupported_and_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(Unsupported, match=names):
        from_config(config_of(SHAPE, **changes), "it")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_key_value_heads": 3}, "4 heads can't share 3"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is None"),
        ({"rope_scaling": "linear"}, "no table"),
    ],
)
def test_numbers_that_cant_be_are_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(ModelError, match=names):
        from_config(config_of(SHAPE, **changes), "it")


def test_a_sliding_window_limits_the_window_and_says_so(tmp_path: Path, tensors: Tensors) -> None:
    config = config_of(SHAPE, model_type="mistral", sliding_window=100)
    engine = load(write_folder(tmp_path / "m", tensors, config), window_tokens=0)
    assert engine.model.window_tokens == 100
    assert "sliding window" in engine.warnings[0]


def test_a_sliding_window_that_is_switched_off_limits_nothing(tmp_path: Path) -> None:
    config = config_of(SHAPE, model_type="qwen2", sliding_window=100, use_sliding_window=False)
    assert from_config(config, "it").sliding_window == 0


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({"memory_bytes": 1 << 16}, ModelError, "weights take .* GiB, the machine has"),
        ({"memory_bytes": 1 << 20, "kv_tokens": 1 << 20}, ModelError, "KV cells take"),
        ({"device": "tpu"}, ConfigError, "'tpu'"),
        ({"kv_tokens": 64}, ConfigError, "cache.kv_tokens is 64, less than model.window_tokens 256"),
    ],
)
def test_what_doesnt_fit_is_refused_with_numbers(
    tmp_path: Path, tensors: Tensors, options: dict[str, Any], error: type[AkashicError], names: str
) -> None:
    with pytest.raises(error, match=names):
        load(write_folder(tmp_path / "m", tensors, config_of(SHAPE)), **options)


def test_cuda_that_isnt_there_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(Unsupported, match="no CUDA device"):
        load(write_folder(tmp_path / "m", tensors, config_of(SHAPE)), device="cuda")


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    cut = {n: t[:200] if n in ("lm_head.weight", "model.embed_tokens.weight") else t for n, t in tensors.items()}
    with pytest.raises(ModelError, match="its tokenizer has 260 tokens, its weights 200"):
        load(write_folder(tmp_path / "m", cut, config_of(SHAPE, vocab_size=200)))


def test_rows_beyond_the_tokenizers_are_never_said(tmp_path: Path, tensors: Tensors) -> None:
    from akashic_daemon.engine.base import BatchItem, SamplingParams
    from akashic_daemon.types import SequenceId

    padded = dict(tensors)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        padded[name] = np.concatenate([tensors[name], 100 * np.ones((60, SHAPE.width), np.float32)])
    engine = load(write_folder(tmp_path / "m", padded, config_of(SHAPE, vocab_size=320)))
    plain = load(write_folder(tmp_path / "p", tensors, config_of(SHAPE)))
    for each in (engine, plain):
        each.decode([BatchItem(SequenceId(0), [5, 6, 7], 0, logits=True)])
    assert engine.logits(0).shape == (1, 260)
    assert np.array_equal(engine.logits(0), plain.logits(0))
    assert engine.sampler(SamplingParams(temperature=0)).sample(0) < 260


@pytest.mark.parametrize("cut", [4, 20, 900])
def test_weights_that_are_cut_off_are_refused(tmp_path: Path, tensors: Tensors, cut: int) -> None:
    folder = write_folder(tmp_path / "m", tensors, config_of(SHAPE))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-cut] if cut == 900 else file.read_bytes()[:cut])
    for call in (describe_model, load):
        with pytest.raises(BadModelFile, match="cut off"):
            call(folder)


def test_a_file_that_lacks_is_named(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_folder(tmp_path / "m", tensors, config_of(SHAPE), files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadModelFile, match=r"model-00002-of-00003\.safetensors is missing"):
        describe_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(BadModelFile, match=r"has no config\.json"):
        describe_model(folder)


def test_an_index_may_not_point_outside_its_folder(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_folder(tmp_path / "m", tensors, config_of(SHAPE))
    listed = dict.fromkeys(tensors, "../m/model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(BadModelFile, match="no list of files"):
        describe_model(folder)


def test_a_folder_is_described_without_being_loaded(tmp_path: Path, tensors: Tensors) -> None:
    found = describe_model(write_folder(tmp_path / "tiny-model", tensors, config_of(SHAPE), files=2))
    assert found.description == "llama tiny-model"
    assert (found.vocabulary_size, found.trained_window_tokens) == (260, SHAPE.window)
    assert found.parameters_count == sum(t.size for t in tensors.values())
    assert found.has_chat_template


def test_any_changed_weight_or_tokenizer_is_another_fingerprint(tmp_path: Path, tensors: Tensors) -> None:
    first = load(write_folder(tmp_path / "a", tensors, config_of(SHAPE))).model.fingerprint
    assert load(write_folder(tmp_path / "b", tensors, config_of(SHAPE))).model.fingerprint == first
    changed = dict(tensors)
    changed["model.norm.weight"] = tensors["model.norm.weight"] * 1.001
    assert load(write_folder(tmp_path / "c", changed, config_of(SHAPE))).model.fingerprint != first
    slower = config_of(SHAPE, rope_theta=10001.0)
    assert load(write_folder(tmp_path / "d", tensors, slower)).model.fingerprint != first
    folder = write_folder(tmp_path / "e", tensors, config_of(SHAPE))
    text = (folder / "tokenizer.json").read_text().replace('"merges": ["h e"]', '"merges": []')
    (folder / "tokenizer.json").write_text(text)
    assert load(folder).model.fingerprint != first
    assert load(folder, kv_type="f16").model.fingerprint != load(folder).model.fingerprint


def test_auto_takes_torch_for_folders_and_llama_cpp_for_ggufs(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    assert engine_of(Config(), tmp_path) == "torch"
    assert engine_of(Config(), file) == "llama_cpp"
    assert engine_of(Config(model=ModelSection(engine="torch")), file) == "torch"
    with pytest.raises(Unsupported, match=r"llama\.cpp reads GGUFs, not folders"):
        engine_of(Config(model=ModelSection(engine="llama_cpp")), tmp_path)


def test_the_daemons_factory_loads_a_folder(tmp_path: Path, tensors: Tensors) -> None:
    folder = write_folder(tmp_path / "m", tensors, config_of(SHAPE))
    config = Config(model=ModelSection(kv_type="f32", gpu_layers=0))
    engine = configured_engines(config)("mine", folder)
    assert isinstance(engine, TorchEngine)
    assert engine.model.name == "mine"
    assert engine.model.window_tokens == SHAPE.window
    engine.close()
