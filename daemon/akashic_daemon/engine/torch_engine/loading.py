"""From options to a loaded model: what fits, what it takes, and what the engine says of itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from akashic_daemon.engine.base import ModelInfo
from akashic_daemon.engine.fingerprint import fingerprint, weights_digest
from akashic_daemon.engine.parts import parts
from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.attention import Sparse
from akashic_daemon.engine.torch_engine.kv import PagedKv
from akashic_daemon.engine.torch_engine.options import TorchOptions
from akashic_daemon.engine.torch_engine.pages import PageTable
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.source import Source, open_source
from akashic_daemon.engine.torch_engine.stage import ROOMS
from akashic_daemon.engine.torch_engine.weights import Weights, load_weights
from akashic_daemon.engine.vocabulary import Vocabulary
from akashic_daemon.errors import ConfigError, ModelError, Unsupported

_LAYOUT_VERSION = 1
_SHARE_OF_RAM = 0.25
_SHARE_OF_GPU = 0.85
_LEAST_CELLS = 4096
_LINK = 50e9


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Everything that the engine is made of."""

    shape: Architecture
    weights: Weights
    kv: PagedKv
    kv_cells: int
    info: ModelInfo
    warnings: list[str] = field(default_factory=list)


def load(options: TorchOptions, vocabulary: Vocabulary) -> Loaded:
    """Load a model. Raises BadModelFile, ModelError, Unsupported, ConfigError."""
    device = _device(options)
    source = open_source(options.path)
    shape = source.architecture
    if vocabulary.size > shape.vocabulary_size:
        raise ModelError(
            f"loading the model {options.path}: its tokenizer has {vocabulary.size:,} tokens, its weights "
            f"{shape.vocabulary_size:,}",
            hint="the files belong to different models; download them again",
        )
    types = _types(options, source, device)
    warnings: list[str] = []
    sizes = _Sizes(options, shape, device, types, warnings)
    weights = load_weights(source, device, types.weights, str(options.path))
    kv_cells, window = sizes.cells_and_window(weights.nbytes)
    kv = make_kv(options, shape, kv_cells, types.kv, device)
    if options.gpu_kv_tokens:
        warnings += said_of_ram(options, shape, kv)
    info = _describe(options, source, vocabulary, types, (kv_cells, window))
    return Loaded(shape, weights, kv, kv_cells, info, warnings)


@dataclass(frozen=True, slots=True)
class _Types:
    weights: torch.dtype
    kv: torch.dtype


def _device(options: TorchOptions) -> torch.device:
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"the torch engine's device {name!r} is unknown", hint="use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Unsupported("no CUDA device was found for the torch engine", hint="use device cpu, or check the driver")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"the torch engine doesn't run on {name!r}", hint="use auto, cpu or cuda")
    return device


def _types(options: TorchOptions, source: Source, device: torch.device) -> _Types:
    """f32 KV makes everything exact; else weights are 16 bits wide on a GPU and f32 on a CPU."""
    half = torch.float16 if source.kind == "f16" else torch.bfloat16
    if options.kv_type == "f32":
        return _Types(torch.float32, torch.float32)
    weights = torch.float32 if device.type == "cpu" else half
    if options.kv_type == "q8_0":
        return _Types(weights, torch.int8)
    return _Types(weights, torch.float16 if device.type == "cpu" else half)


class _Sizes:
    """How many cells and how long a window: asked for, or what the memory gives."""

    def __init__(
        self, options: TorchOptions, shape: Architecture, device: torch.device, types: _Types, warnings: list[str]
    ) -> None:
        self._options = options
        self._shape = shape
        self._device = device
        self._warnings = warnings
        self._cell_bytes = shape.kv_bytes_per_token(types.kv.itemsize)
        self._window = self._longest_window()
        needed = shape.parameters * types.weights.itemsize
        self._refuse_too_large(needed, self._memory_bytes(), "weights")

    def cells_and_window(self, weights_bytes: int) -> tuple[int, int]:
        """Return cells and window, once the weights are loaded. Raises ModelError when they can't be had."""
        if self._options.kv_tokens:
            cells = self._options.kv_tokens
            if self._options.window_tokens > cells:
                raise ConfigError(
                    f"cache.kv_tokens is {cells}, less than model.window_tokens {self._options.window_tokens}",
                    hint="raise cache.kv_tokens or lower model.window_tokens",
                )
        else:
            cells = 4 * self._window
            share = self._affordable()
            if share is not None:
                cells = min(cells, max(_LEAST_CELLS, share // self._cell_bytes))
        self._refuse_cells(cells, weights_bytes)
        if self._window > cells:
            self._warnings.append(f"the window is {cells:,} of {self._window:,} tokens, to keep KV in memory")
        return cells, min(self._window, cells)

    def _refuse_cells(self, cells: int, weights_bytes: int) -> None:
        on_device = min(self._options.gpu_kv_tokens or cells, cells)
        memory = self._memory_bytes()
        if memory is not None:
            left = memory if self._device.type == "cuda" else memory - weights_bytes
            self._refuse_too_large(on_device * self._cell_bytes, left, f"{on_device:,} KV cells")
        if self._options.gpu_kv_tokens and self._options.memory_bytes:
            ram = self._options.memory_bytes
            self._refuse_too_large(cells * self._cell_bytes, ram, f"{cells:,} KV cells in RAM", where="the machine has")

    def _longest_window(self) -> int:
        window = self._options.window_tokens or self._shape.window_tokens
        sliding = self._shape.sliding_window
        if sliding and window > sliding:
            self._warnings.append(
                f"the window is {sliding:,} of {window:,} tokens: beyond, the model attends to a sliding window, "
                "which this engine doesn't"
            )
            return sliding
        return window

    def _memory_bytes(self) -> int | None:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        return self._options.memory_bytes or None

    def _affordable(self) -> int | None:
        in_ram = self._device.type == "cpu" or self._options.gpu_kv_tokens > 0
        memory = (self._options.memory_bytes or None) if in_ram else self._memory_bytes()
        if memory is None:
            return None
        return int(memory * (_SHARE_OF_RAM if in_ram else _SHARE_OF_GPU))

    def _refuse_too_large(self, needed: int, memory: int | None, what: str, where: str = "") -> None:
        if memory is not None and needed > memory:
            where = where or ("the GPU has" if self._device.type == "cuda" else "the machine has")
            hint = "use a smaller model" if what == "weights" else "lower cache.kv_tokens or model.window_tokens"
            raise ModelError(
                f"loading the model {self._options.path}: {what} take {needed / 2**30:,.1f} GiB, "
                f"{where} {max(0, memory) / 2**30:,.1f} GiB left",
                hint=hint,
            )


def make_kv(
    options: TorchOptions, shape: Architecture, kv_cells: int, kv_type: torch.dtype, device: torch.device
) -> PagedKv:
    """Allocate KV for so many cells, on the device or in RAM. Raises ModelError when memory lacks."""
    pages = -(-kv_cells // options.page_tokens) + min(options.max_sequences, options.spare_pages)
    bounded = options.sparse_blocks > 0
    try:
        if options.gpu_kv_tokens:
            hot, opened = _hot_pages(options, shape, pages, kv_type)
            pool: KvPool = RamPool(
                shape, pages, options.page_tokens, kv_type, device,
                hot_pages=hot, open_pages=opened, prefetch=options.prefetch_tiles, bounded=bounded,
            )  # fmt: skip
        else:
            pool = KvPool(shape, pages, options.page_tokens, kv_type, device, bounded=bounded)
    except RuntimeError as error:  # torch says so when memory lacks, on any device
        needed = pages * options.page_tokens * shape.kv_bytes_per_token(kv_type.itemsize)
        raise ModelError(
            f"making room for {kv_cells:,} KV cells ({needed / 2**30:,.1f} GiB): {error}",
            hint="lower cache.kv_tokens or model.window_tokens",
        ) from error
    return PagedKv(pool, PageTable(pages, options.page_tokens), options.max_sequences)


def _hot_pages(options: TorchOptions, shape: Architecture, pages: int, kv_type: torch.dtype) -> tuple[int, int]:
    """Return how many pages of each head, and how many open ones, the device keeps beside the stage's two layers."""
    if kv_type == torch.int8:
        raise Unsupported(
            "KV in RAM isn't known in 8 bits yet", hint="set model.kv_type to f16, or cache.gpu_kv_tokens to 0"
        )
    tokens = options.page_tokens
    staged = -(-ROOMS * pages // shape.layers)
    if not options.sparse_blocks:
        least, room = staged, options.gpu_kv_tokens // tokens
        hot = opened = 0
    else:
        opened = max(1, min(options.open_pages, options.max_sequences))
        least, room = staged + opened + Sparse(options.sparse_blocks).most, options.gpu_kv_tokens // tokens
        hot = min(room - staged - opened, pages)
    if room < least:
        raise ConfigError(
            f"cache.gpu_kv_tokens is {options.gpu_kv_tokens:,}: two layers of {pages * tokens:,} cells and what a step "
            f"reads take the room of {least * tokens:,} tokens",
            hint=f"set it to {least * tokens} or more, or lower cache.kv_tokens",
        )
    return hot, opened


def said_of_ram(options: TorchOptions, shape: Architecture, kv: PagedKv) -> list[str]:
    """Return what KV in RAM costs, in words."""
    pool = kv.pool
    size_bytes = pool.k.nbytes + pool.v.nbytes
    told = f"KV takes {size_bytes / 2**30:,.2f} GiB of RAM"
    if isinstance(pool, RamPool):
        told += f" and {pool.gpu_bytes / 2**30:,.2f} GiB on the device"
    a_thousand = 1024 * shape.kv_bytes_per_token(pool.dtype.itemsize)
    read = f"{a_thousand / 2**20:,.0f} MiB from RAM for each 1,024 tokens that it sees ({a_thousand / _LINK * 1e3:,.1f} ms at 50 GB/s)"
    if options.sparse_blocks:
        return [f"{told}; a prefill step reads {read}, a decoded token only the pages that lack on the device"]
    return [f"{told}; every step, each decoded token's too, reads {read}: model.sparse_blocks reads less"]


def _describe(
    options: TorchOptions, source: Source, vocabulary: Vocabulary, types: _Types, sizes: tuple[int, int]
) -> ModelInfo:
    shape, (kv_cells, window) = source.architecture, sizes
    per_token = shape.kv_bytes_per_token(types.kv.itemsize)
    weights, settings = weights_digest(options.path, options.digests), _settings(options, shape, vocabulary, types)
    parameters = f"{shape.parameters / 1e6:,.0f}M" if shape.parameters < 1e9 else f"{shape.parameters / 1e9:,.1f}B"
    return ModelInfo(
        name=options.name,
        path=str(options.path),
        description=f"{shape.name} {parameters} {source.kind}, computed in {_short(types.weights)}",
        architecture=shape.name,
        parameters_count=shape.parameters,
        size_bytes=source.size_bytes,
        kv_bytes_per_token=per_token,
        kv_bytes=per_token * kv_cells,
        vocabulary_size=vocabulary.size,
        trained_window_tokens=shape.window_tokens,
        window_tokens=window,
        chat_template=vocabulary.chat_template,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        fingerprint=fingerprint(weights, settings),
        parts=parts(weights, settings),
        metadata={
            "engine": "torch",
            "weights_type": source.kind,
            "computed_in": _short(types.weights),
            "kv_type": _short(types.kv),
        },
    )


def _settings(
    options: TorchOptions, shape: Architecture, vocabulary: Vocabulary, types: _Types
) -> dict[str, str | int]:
    """Return what changes KV besides the weights."""
    return {
        "engine": "torch",
        "build": str(torch.__version__),
        "layout_version": _LAYOUT_VERSION,
        "kv_type": _short(types.kv),
        "computed_in": _short(types.weights),
        "sparse_blocks": options.sparse_blocks,
        "rope": hashlib.blake2b(shape.rope.described().encode(), digest_size=16).hexdigest(),
        "tokenizer": vocabulary.digest,
    }


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
