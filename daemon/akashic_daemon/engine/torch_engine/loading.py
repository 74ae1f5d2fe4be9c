"""From options to a loaded model: what fits, what it takes, and what the engine says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from akashic_daemon.engine.base import ModelInfo
from akashic_daemon.engine.fingerprint import fingerprint, weights_digest
from akashic_daemon.engine.parts import parts
from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.attention import Sparse
from akashic_daemon.engine.torch_engine.kv import PagedKv
from akashic_daemon.engine.torch_engine.options import TorchOptions
from akashic_daemon.engine.torch_engine.pages import PageTable
from akashic_daemon.engine.torch_engine.placement import LayerRun, described
from akashic_daemon.engine.torch_engine.pool import KvPool
from akashic_daemon.engine.torch_engine.ram_pool import RamPool
from akashic_daemon.engine.torch_engine.sizes import Sizes, Types, place
from akashic_daemon.engine.torch_engine.source import Source, open_source
from akashic_daemon.engine.torch_engine.split import SplitPool
from akashic_daemon.engine.torch_engine.stage import ROOMS
from akashic_daemon.engine.torch_engine.weights import Weights, load_weights
from akashic_daemon.engine.vocabulary import Vocabulary
from akashic_daemon.errors import ConfigError, ModelError, Unsupported
from akashic_kernels.tile_cache.validation import SLOTS_MOST

_LAYOUT_VERSION = 1
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
    devices = _devices(options)
    source = open_source(options.path)
    shape = source.architecture
    if vocabulary.size > shape.vocabulary_size:
        raise ModelError(
            f"loading the model {options.path}: its tokenizer has {vocabulary.size:,} tokens, its weights "
            f"{shape.vocabulary_size:,}",
            hint="the files belong to different models; download them again",
        )
    if len(devices) > shape.layers and options.device != "auto":
        raise ConfigError(
            f"{len(devices)} devices are named for the {shape.layers} layers of {options.path}",
            hint=f"name {shape.layers} or fewer in model.torch_devices",
        )
    types = _types(options, source, devices[0])
    warnings: list[str] = []
    placed = place(options, shape, devices, types, warnings)
    one = None if placed.cells else Sizes(options, shape, placed.runs[0].device, types, warnings)
    of_layers = [run.device for run in placed.runs for _ in range(run.count)]
    try:
        weights = load_weights(source, of_layers, types.weights, str(options.path))
    except RuntimeError as error:  # torch's own for memory that isn't there
        raise ModelError(
            f"loading the weights of {options.path} to {described(placed.runs)}: {error}",
            hint="free memory there, lower cache.kv_tokens, or name further devices in model.torch_devices",
        ) from error
    kv_cells, window = one.cells_and_window(weights.nbytes) if one else (placed.cells, placed.window)
    kv = make_kv(options, shape, kv_cells, types.kv, placed.runs)
    if options.gpu_kv_tokens:
        warnings += said_of_ram(options, shape, kv)
    info = _describe(options, source, vocabulary, types, (kv_cells, window), placed.runs)
    return Loaded(shape, weights, kv, kv_cells, info, warnings)


def _devices(options: TorchOptions) -> list[torch.device]:
    """Return the devices that were named, or those there are for auto: all alike, cpu or cuda."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.device == "auto":
        return [torch.device("cuda", n) for n in range(gpus)] or [torch.device("cpu")]
    devices = [_device(name.strip(), gpus) for name in options.device.split(",")]
    if len({device.type for device in devices}) > 1:
        raise ConfigError(
            f"the torch engine's devices {options.device!r} are of two kinds", hint="name GPUs alone, or cpu alone"
        )
    return devices


def _device(name: str, gpus: int) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"the torch engine's device {name!r} is unknown",
            hint="use auto, cpu, cuda or cuda:N, or several with commas",
        ) from error
    if device.type == "cuda" and not gpus:
        raise Unsupported("no CUDA device was found for the torch engine", hint="use device cpu, or check the driver")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"the torch engine doesn't run on {name!r}", hint="use auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(
            f"the torch engine's device {name!r} isn't there: this machine has {gpus}, cuda:0 to cuda:{gpus - 1}",
            hint="correct model.torch_devices",
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _types(options: TorchOptions, source: Source, device: torch.device) -> Types:
    """f32 KV makes everything exact; else weights are 16 bits wide on a GPU and f32 on a CPU."""
    half = torch.float16 if source.kind == "f16" else torch.bfloat16
    if options.kv_type == "f32":
        return Types(torch.float32, torch.float32)
    weights = torch.float32 if device.type == "cpu" else half
    if options.kv_type == "q8_0":
        return Types(weights, torch.int8)
    return Types(weights, torch.float16 if device.type == "cpu" else half)


def make_kv(
    options: TorchOptions,
    shape: Architecture,
    kv_cells: int,
    kv_type: torch.dtype,
    where: torch.device | Sequence[LayerRun],
) -> PagedKv:
    """Allocate KV for so many cells, on the device of each layer or in RAM. Raises ModelError when memory lacks."""
    pages = -(-kv_cells // options.page_tokens) + min(options.max_sequences, options.spare_pages)
    runs = [LayerRun(where, 0, shape.layers)] if isinstance(where, torch.device) else where
    if options.gpu_kv_tokens:  # who has the fewest layers needs the most; what is refused names that
        _hot_pages(options, replace(shape, layers=min(run.count for run in runs)), pages)
    try:
        pools = [_pool(options, replace(shape, layers=run.count), pages, kv_type, run.device) for run in runs]
    except RuntimeError as error:  # torch says so when memory lacks, on any device
        needed = pages * options.page_tokens * shape.kv_bytes_per_token(kv_type.itemsize)
        raise ModelError(
            f"making room for {kv_cells:,} KV cells ({needed / 2**30:,.1f} GiB): {error}",
            hint="lower cache.kv_tokens or model.window_tokens",
        ) from error
    pool = pools[0] if len(pools) == 1 else SplitPool(pools)
    return PagedKv(pool, PageTable(pages, options.page_tokens), options.max_sequences)


def _pool(options: TorchOptions, shape: Architecture, pages: int, kv_type: torch.dtype, device: torch.device) -> KvPool:
    """Allocate KV of the layers of one device, which has its part of the room that `gpu_kv_tokens` is."""
    bounded = options.sparse_blocks > 0
    if not options.gpu_kv_tokens:
        return KvPool(shape, pages, options.page_tokens, kv_type, device, bounded=bounded)
    hot, opened = _hot_pages(options, shape, pages)
    return RamPool(
        shape, pages, options.page_tokens, kv_type, device,
        hot_pages=hot, open_pages=opened, prefetch=options.prefetch_tiles, bounded=bounded,
    )  # fmt: skip


def _hot_pages(options: TorchOptions, shape: Architecture, pages: int) -> tuple[int, int]:
    """Return how many pages of each head, and how many open ones, the device keeps; the stage's two layers go there too."""
    tokens = options.page_tokens
    room = options.gpu_kv_tokens // tokens
    staged = -(-min(ROOMS, shape.layers) * pages // shape.layers)
    if not options.sparse_blocks:
        least = staged
        hot = opened = 0
    else:
        opened, read = max(1, min(options.open_pages, options.max_sequences)), Sparse(options.sparse_blocks).most
        least = max(staged, opened + read)
        # As many as one sequence may read, though there be fewer pages: a step that could read more than stands here is staged.
        hot = min(room - opened, max(pages, read), SLOTS_MOST)
    if room < least:
        raise ConfigError(
            f"cache.gpu_kv_tokens is {options.gpu_kv_tokens:,}: two layers of {pages * tokens:,} cells, or what a "
            f"decoded token reads, take the room of {least * tokens:,} tokens",
            hint=f"set it to {least * tokens} or more, or lower cache.kv_tokens",
        )
    return hot, opened


def said_of_ram(options: TorchOptions, shape: Architecture, kv: PagedKv) -> list[str]:
    """Return what KV in RAM costs, in words."""
    parts = kv.pool.parts if isinstance(kv.pool, SplitPool) else (kv.pool,)
    pools = [part for part in parts if isinstance(part, RamPool)]
    in_ram, on_device = (sum(sizes) / 2**30 for sizes in zip(*((p.ram_bytes, p.gpu_bytes) for p in pools), strict=True))
    told = f"KV takes {in_ram:,.2f} GiB of RAM and {on_device:,.2f} GiB on the device{'s' if len(pools) > 1 else ''}"
    a_thousand = 1024 * shape.kv_bytes_per_token(kv.pool.dtype.itemsize)
    read = f"{a_thousand / 2**20:,.0f} MiB from RAM for each 1,024 tokens that it sees ({a_thousand / _LINK * 1e3:,.1f} ms at 50 GB/s)"
    if options.sparse_blocks:
        return [f"{told}; a prefill step reads {read}, a decoded token only the pages that lack on the device"]
    return [f"{told}; every step, each decoded token's too, reads {read}: model.sparse_blocks reads less"]


def _describe(
    options: TorchOptions,
    source: Source,
    vocabulary: Vocabulary,
    types: Types,
    sizes: tuple[int, int],
    runs: Sequence[LayerRun],
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
            "devices": described(runs) if len(runs) > 1 else str(runs[0].device),
        },
    )


def _settings(options: TorchOptions, shape: Architecture, vocabulary: Vocabulary, types: Types) -> dict[str, str | int]:
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
