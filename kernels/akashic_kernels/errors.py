"""What the kernels raise; the engine maps these where they arise.

KernelError
├── KernelInputError     the arguments can't be right, whatever the machine
└── KernelUnavailable    the arguments are fine, but the asked-for backend can't run here
"""

from __future__ import annotations


class KernelError(Exception):
    """The base of all errors of this package; `kernel` is the op's name."""

    def __init__(self, kernel: str, problem: str) -> None:
        super().__init__(f"{kernel}: {problem}")
        self.kernel = kernel


class KernelInputError(KernelError, ValueError):
    """An argument has a wrong shape, type, place or value."""


class KernelUnavailable(KernelError, RuntimeError):
    """The backend can't run on this machine, or its kernel failed to compile; never a reason to take another one."""
