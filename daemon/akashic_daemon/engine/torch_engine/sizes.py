"""How many KV cells and how long a window a model gets: what was asked for, or what the memory of its devices gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from akashic_daemon.engine.torch_engine.architecture import Architecture
from akashic_daemon.engine.torch_engine.options import TorchOptions
from akashic_daemon.engine.torch_engine.placement import LayerRun, Need, described, divide, most_cells, runs_of
from akashic_daemon.errors import ConfigError, ModelError

_SHARE_OF_RAM = 0.25
_SHARE_OF_GPU = 0.85
_LEAST_CELLS = 4096
_UNKNOWN_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Types:
    """What weights are computed in and KV is kept as."""

    weights: torch.dtype
    kv: torch.dtype


@dataclass(frozen=True, slots=True)
class Sized:
    """Where the layers go, and how many cells and how long a window there are. `cells` 0: to be worked out after loading."""

    runs: tuple[LayerRun, ...]
    cells: int = 0
    window: int = 0


def place(
    options: TorchOptions, shape: Architecture, devices: Sequence[torch.device], types: Types, warnings: list[str]
) -> Sized:
    """Choose the devices: all that were named, or the fewest that will do where `options.device` is auto.

    Raises ModelError when not all of them together have room.
    """
    needed = Need.of(shape, types.weights.itemsize, types.kv.itemsize)
    wanted = on_device(options, options.kv_tokens or options.window_tokens or shape.window_tokens)
    if len(devices) > 1 and options.device == "auto":
        for count in range(1, len(devices)):
            rooms = [int(_SHARE_OF_GPU * room) for room in free_bytes(options, devices[:count])]
            if divide(rooms, needed, wanted) is not None:
                devices = devices[:count]
                break
    if len(devices) == 1:
        return Sized((LayerRun(devices[0], 0, shape.layers),))
    return _divided(options, shape, devices, needed, warnings)


def _divided(
    options: TorchOptions, shape: Architecture, devices: Sequence[torch.device], needed: Need, warnings: list[str]
) -> Sized:
    window, rooms = longest_window(options, shape, warnings), free_bytes(options, devices)
    most = most_cells([int(_SHARE_OF_GPU * room) for room in rooms], needed)
    cells = options.kv_tokens or 4 * window
    if options.kv_tokens:
        check_window(options)
    elif options.gpu_kv_tokens:
        in_ram = int(_SHARE_OF_RAM * (options.memory_bytes or _UNKNOWN_BYTES))
        cells = min(cells, max(_LEAST_CELLS, in_ram // (needed.layers * needed.cell)))
    else:
        cells = min(cells, max(_LEAST_CELLS, most))
    here = on_device(options, cells)
    counts = divide(rooms, needed, here)
    if counts is None:
        raise _too_large(options, devices, rooms, needed, here)
    refuse_ram(options, cells * needed.cell * needed.layers, cells)
    runs = runs_of(devices, counts)
    idle = [str(device) for device, count in zip(devices, counts, strict=True) if not count]
    if idle:
        warnings.append(f"{', '.join(idle)} has no room for one layer and its KV, and is left out")
    warnings.append(f"the layers stand on {len(runs)} devices ({described(runs)}), which compute one after another")
    if window > cells:
        warnings.append(f"the window is {cells:,} of {window:,} tokens, to keep KV in memory")
    return Sized(runs, cells, min(window, cells))


def _too_large(
    options: TorchOptions, devices: Sequence[torch.device], rooms: Sequence[int], needed: Need, cells: int
) -> ModelError:
    room = ", ".join(f"{device} {room / 2**30:,.1f}" for device, room in zip(devices, rooms, strict=True))
    kv = cells * needed.cell * needed.layers
    most = most_cells(rooms, needed)
    fits = "not even the weights fit" if most < 0 else f"beside the weights, {most:,} KV cells fit"
    return ModelError(
        f"loading the model {options.path}: weights take {needed.weights / 2**30:,.1f} GiB and {cells:,} KV cells "
        f"{kv / 2**30:,.1f}, a layer {(needed.layer + cells * needed.cell) / 2**30:,.2f} of it; left, in GiB: {room}; {fits}",
        hint="use a smaller model or more devices"
        if most < 0
        else "lower cache.kv_tokens or model.window_tokens, or name more devices in model.torch_devices",
    )


def free_bytes(options: TorchOptions, devices: Sequence[torch.device]) -> list[int]:
    """Return what each device has left; one that is named several times has a share of it each time."""
    rooms = []
    for device in devices:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else options.memory_bytes or _UNKNOWN_BYTES
        rooms.append(int(free) // sum(other == device for other in devices))
    return rooms


def on_device(options: TorchOptions, cells: int) -> int:
    """Return for how many of the cells there must be room where the layers compute."""
    return min(options.gpu_kv_tokens or cells, cells)


def longest_window(options: TorchOptions, shape: Architecture, warnings: list[str]) -> int:
    """Return the window that was asked for or the model's, as far as full attention is what it does."""
    window = options.window_tokens or shape.window_tokens
    sliding = shape.sliding_window
    if sliding and window > sliding:
        warnings.append(
            f"the window is {sliding:,} of {window:,} tokens: beyond, the model attends to a sliding window, "
            "which this engine doesn't"
        )
        return sliding
    return window


def check_window(options: TorchOptions) -> None:
    """Raise ConfigError when the cells that are asked for don't hold the window that is."""
    if options.window_tokens > options.kv_tokens:
        raise ConfigError(
            f"cache.kv_tokens is {options.kv_tokens}, less than model.window_tokens {options.window_tokens}",
            hint="raise cache.kv_tokens or lower model.window_tokens",
        )


def refuse_ram(options: TorchOptions, needed: int, cells: int) -> None:
    """Raise ModelError when the machine can't hold all cells in RAM, where they are to stand there."""
    if options.gpu_kv_tokens and options.memory_bytes:
        _refuse_too_large(options, needed, options.memory_bytes, f"{cells:,} KV cells in RAM", "the machine has")


def _refuse_too_large(options: TorchOptions, needed: int, memory: int | None, what: str, where: str) -> None:
    if memory is not None and needed > memory:
        hint = "use a smaller model" if what == "weights" else "lower cache.kv_tokens or model.window_tokens"
        raise ModelError(
            f"loading the model {options.path}: {what} take {needed / 2**30:,.1f} GiB, "
            f"{where} {max(0, memory) / 2**30:,.1f} GiB left",
            hint=hint,
        )


class Sizes:
    """The sizes on one device. Made before the weights are loaded; raises ModelError when they are too large."""

    def __init__(
        self, options: TorchOptions, shape: Architecture, device: torch.device, types: Types, warnings: list[str]
    ) -> None:
        self._options = options
        self._device = device
        self._warnings = warnings
        self._where = "the GPU has" if device.type == "cuda" else "the machine has"
        self._cell_bytes = shape.kv_bytes_per_token(types.kv.itemsize)
        self._window = longest_window(options, shape, warnings)
        needed = shape.parameters * types.weights.itemsize
        _refuse_too_large(options, needed, self._memory_bytes(), "weights", self._where)

    def cells_and_window(self, weights_bytes: int) -> tuple[int, int]:
        """Return cells and window, once the weights are loaded. Raises ModelError when they can't be had."""
        if self._options.kv_tokens:
            cells = self._options.kv_tokens
            check_window(self._options)
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
        here, memory = on_device(self._options, cells), self._memory_bytes()
        if memory is not None:
            left = memory if self._device.type == "cuda" else memory - weights_bytes
            _refuse_too_large(self._options, here * self._cell_bytes, left, f"{here:,} KV cells", self._where)
        refuse_ram(self._options, cells * self._cell_bytes, cells)

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
