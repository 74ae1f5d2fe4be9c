"""What `akashic doctor` looks at. Every check returns findings and raises nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from akashic_cli.doctor.finding import Finding, Level
from akashic_cli.doctor.home import (
    check_budgets,
    check_database,
    check_disk,
    check_disk_speed,
    check_private,
    check_settings,
    check_socket_folder,
    check_writable,
)
from akashic_cli.doctor.installation import (
    check_compiler,
    check_embedded_model,
    check_llama_cpp,
    check_python,
    check_service,
)
from akashic_cli.doctor.serving import (
    check_cache_editing,
    check_clients,
    check_daemon,
    check_models,
    check_port,
    check_tiers,
)
from akashic_daemon.paths import Paths, find_paths

__all__ = ["Finding", "Level", "diagnose"]

Check = Callable[[Paths], Finding | list[Finding]]
CHECKS: Sequence[Check] = (
    check_python,
    check_llama_cpp,
    check_compiler,
    check_embedded_model,
    check_settings,
    check_socket_folder,
    check_writable,
    check_private,
    check_database,
    check_disk,
    check_disk_speed,
    check_budgets,
    check_service,
    check_daemon,
    check_models,
    check_tiers,
    check_cache_editing,
    check_port,
    check_clients,
)
"""In the order in which they are told: those that others depend on first."""


def diagnose() -> list[Finding]:
    """Run all checks."""
    paths, out = find_paths(), list[Finding]()
    for check in CHECKS:
        found = check(paths)
        out += found if isinstance(found, list) else [found]
    return out
