"""What the torch engine refuses on GPUs, tried without one: too old, too small, a kernel that can't run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("llama_cpp")
pytest.importorskip("gguf")
import torch

from akashic_daemon.engine.base import BatchItem
from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions, attention
from akashic_daemon.engine.torch_engine.sizes import Sizes, Types
from akashic_daemon.engine.torch_engine.source import open_source
from akashic_daemon.errors import EngineError, ModelError
from akashic_daemon.types import SequenceId
from akashic_kernels.backend import choose, launching
from akashic_kernels.errors import KernelUnavailable
from tiny_gguf import write_tiny_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def test_a_gpu_that_is_too_old_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    tensor: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
    with pytest.raises(KernelUnavailable, match=r"paged_decode: needs .* 8\.0 or newer; Tesla T4 has 7\.5"):
        choose("paged_decode", tensor, None)


def test_a_kernel_that_doesnt_compile_is_named_and_nothing_takes_its_place() -> None:
    from triton.runtime.errors import OutOfResources

    said = r"segment_prefill: .*can't run on this GPU.*shared memory"
    with pytest.raises(KernelUnavailable, match=said), launching("segment_prefill"):
        raise OutOfResources(300_000, 232_448, "shared memory")


def test_a_step_whose_kernel_cant_run_ends_with_its_name_and_adds_no_cell(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TorchOptions(name="tiny", path=file, kv_type="f32", kv_tokens=64, window_tokens=64, device="cpu")
    engine = TorchEngine(options, LlamaVocabulary(file))

    def broken(*_: Any, **__: Any) -> None:
        raise KernelUnavailable("rope_append", "its Triton kernel can't run on this GPU: no registers")

    item = BatchItem(SequenceId(0), [1, 2, 3], 0, logits=True)
    with monkeypatch.context() as patched:
        patched.setattr(attention, "rope_append", broken)
        with pytest.raises(EngineError, match=r"computing 3 tokens: rope_append: .*no registers"):
            engine.decode([item])
    assert engine.kv.cells_held() == 0
    engine.decode([item])
    engine.close()


@pytest.mark.parametrize(
    ("options", "free", "said"),
    [
        ({"kv_tokens": 1024}, 1, "weights take .* GiB, the GPU has .* GiB left"),
        ({"kv_tokens": 1 << 20}, 1 << 27, "1,048,576 KV cells take .* GiB, the GPU has 0.1 GiB left"),
        ({"kv_tokens": 1 << 20, "gpu_kv_tokens": 1 << 19}, 1 << 26, "524,288 KV cells take .* the GPU has 0.1 GiB"),
        (
            {"kv_tokens": 1 << 20, "gpu_kv_tokens": 1024, "memory_bytes": 1 << 26},
            1 << 40,
            "1,048,576 KV cells in RAM take .* GiB, the machine has 0.1 GiB left",
        ),
    ],
)
def test_what_a_gpu_cant_hold_is_refused_with_numbers(
    file: Path, options: dict[str, int], free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 40))
    given = TorchOptions(name="tiny", path=file, window_tokens=1024, **options)  # type: ignore[arg-type]
    types = Types(torch.bfloat16, torch.bfloat16)
    with pytest.raises(ModelError, match=said):
        Sizes(given, open_source(file).architecture, torch.device("cuda"), types, []).cells_and_window(1 << 20)
