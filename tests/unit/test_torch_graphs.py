"""How decode steps are recorded as CUDA graphs, tried without a GPU; `tests/bench/torch_decode.py` counts pools on one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from akashic_daemon.engine.torch_engine.graphs import Recorder


def test_all_graphs_of_a_device_are_recorded_on_its_stream_and_share_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch shares a pool's memory between graphs only that were recorded on the same stream."""
    recorded: list[tuple[Any, Any, Any]] = []

    def graph(graph: Any, *, pool: Any, stream: Any) -> Any:
        recorded.append((graph, pool, stream))
        return nullcontext()

    def stream(device: torch.device) -> Any:
        return SimpleNamespace(device=device, wait_stream=lambda other: None)

    for name, value in {
        "Stream": stream, "current_stream": stream, "stream": lambda _: nullcontext(), "graph": graph,
        "CUDAGraph": object, "graph_pool_handle": object,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    first, second = (Recorder(torch.device("cuda", n)) for n in range(2))
    made = [one.record(lambda: torch.zeros(1)) for one in (first, second, first)]
    graphs, pools, streams = zip(*recorded, strict=True)
    assert [graph for graph, _ in made] == list(graphs)
    assert (pools[0] is pools[2], streams[0] is streams[2]) == (True, True)
    assert pools[0] is not pools[1]
    assert [one.device.index for one in streams] == [0, 1, 0]
