"""The random programs of `programs_driver` on the torch engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary
from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
from programs_driver import Programs


class TorchPrograms(Programs):
    """`page_tokens` slots a page: small ones are packed often."""

    def __init__(
        self,
        file: Path,
        seed: int,
        page_tokens: int,
        sparse_blocks: int = 0,
        gpu_kv_tokens: int = 0,
        device: str = "cpu",
    ) -> None:
        self.page_tokens = page_tokens
        self.sparse_blocks = sparse_blocks
        self.gpu_kv_tokens = gpu_kv_tokens
        self.device = device
        super().__init__(file, seed)

    def make_engine(self) -> Any:
        return TorchEngine(
            TorchOptions(
                name="tiny", path=self.file, kv_type="f32", max_sequences=8, kv_tokens=self.cells, threads=1,
                page_tokens=self.page_tokens, spare_pages=1, device=self.device, sparse_blocks=self.sparse_blocks,
                gpu_kv_tokens=self.gpu_kv_tokens,
            ),
            LlamaVocabulary(self.file),
        )  # fmt: skip

    def last_logits(self, number: int, size: int) -> Any:
        return self.engine.logits(number)[-1]

    def act(self) -> None:
        super().act()
        self.engine.kv.check()
