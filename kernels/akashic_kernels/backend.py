"""Which implementation of an op runs: Triton on CUDA tensors, the torch reference on CPU tensors.

Invariant: nothing falls back. A kernel that can't run raises, naming itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from akashic_kernels.errors import KernelInputError, KernelUnavailable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Backend = Literal["triton", "reference"]
OLDEST_CAPABILITY = (8, 0)


def choose(kernel: str, tensor: Tensor, backend: Backend | None) -> Backend:
    """Say which backend runs `kernel` on `tensor`.

    `backend` None chooses by the tensor's place; "triton" on a CPU tensor needs Triton's interpreter
    (TRITON_INTERPRET=1 set before triton is imported).
    """
    if backend not in {None, "triton", "reference"}:
        raise KernelInputError(kernel, f"unknown backend {backend!r}; known are 'triton' and 'reference'")
    if backend == "reference":
        return "reference"
    if tensor.is_cuda:
        _check_gpu(kernel, tensor)
        return "triton"
    if tensor.device.type != "cpu":
        raise KernelUnavailable(kernel, f"runs on CUDA and CPU tensors, not on {tensor.device}")
    if backend is None:
        return "reference"
    if not interpreted():
        raise KernelUnavailable(
            kernel, "backend 'triton' on a CPU tensor needs TRITON_INTERPRET=1 in the environment before start"
        )
    return "triton"


def interpreted() -> bool:
    """Say whether Triton's kernels run in its interpreter in this process."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def can_overlap(device: torch.device) -> bool:
    """Say whether a launch on `device` may begin before the one before it has ended (programmatic dependent launch)."""
    import torch

    return torch.cuda.get_device_capability(device) >= (9, 0)


class launching:  # noqa: N801 - read as what goes on in its block
    """Name the kernel in what Triton raises when it can't compile or place one. Every launch stands in one.

    A class, and triton's errors are looked for in what was raised only: it stands on the path of each launch.
    """

    __slots__ = ("_kernel",)

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, where: object) -> None:
        """Raise KernelUnavailable from what Triton raised."""
        if problem is None:
            return
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import OutOfResources, PTXASError

        if isinstance(problem, CompilationError | OutOfResources | PTXASError):
            raise KernelUnavailable(self._kernel, f"its Triton kernel can't run on this GPU: {problem}") from problem


def power_of_two(n: int) -> int:
    """Give the least power of two that is not less than `n`: what Triton's blocks must be."""
    return 1 << (n - 1).bit_length()


def _check_gpu(kernel: str, tensor: Tensor) -> None:
    import torch

    capability = torch.cuda.get_device_capability(tensor.device)
    if capability < OLDEST_CAPABILITY:
        name = torch.cuda.get_device_name(tensor.device)
        raise KernelUnavailable(
            kernel, f"needs a GPU of compute capability 8.0 or newer; {name} has {capability[0]}.{capability[1]}"
        )
