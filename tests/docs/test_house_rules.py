"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "akashic_cli": ROOT / "akashic_cli",
    "akashic_daemon": ROOT / "daemon" / "akashic_daemon",
    "akashic_kernels": ROOT / "kernels" / "akashic_kernels",
}
MODULES = sorted(p for root in PACKAGES.values() for p in root.rglob("*.py"))
_FORBIDDEN = re.compile("|".join(["/" + "work/", "/" + "root/", "far" + "m-", "bash_" + "jobs"]))
_LONGEST_FILE_LINES = 500


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for_and_fits_a_head(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a module without a docstring"
    assert text.count("\n") <= _LONGEST_FILE_LINES


def imported_by(path: Path) -> set[str]:
    """Return the top-level packages that a file imports anywhere, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(
    ("foreign", "home"),
    [
        ({"sqlite3", "sqlite_utils"}, PACKAGES["akashic_daemon"] / "store"),
        ({"llama_cpp"}, PACKAGES["akashic_daemon"] / "engine" / "llama_cpp"),
        ({"typer", "rich", "prompt_toolkit"}, PACKAGES["akashic_cli"]),
    ],
    ids=["sqlite", "llama.cpp", "terminal"],
)
def test_a_foreign_library_is_imported_in_its_one_place_only(foreign: set[str], home: Path) -> None:
    users = {p for p in MODULES if imported_by(p) & foreign}
    assert users
    assert [str(p.relative_to(ROOT)) for p in users if not p.is_relative_to(home)] == []


def test_the_map_in_architecture_names_each_part_and_nothing_else() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Map", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    parts = set()
    for name, root in PACKAGES.items():
        for child in root.iterdir():
            if child.name.startswith("__") or child.name == "py.typed":
                continue
            parts.add(f"{name}/{child.name}" + ("/" if child.is_dir() else ""))
    assert named == {p for p in parts if p.endswith(("/", ".py"))}


def test_every_test_that_architecture_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert named
    assert [n for n in named if not (ROOT / n).is_file()] == []


def test_every_module_that_architecture_speaks_of_exists() -> None:
    prose = re.sub(r"^\|.*\n", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"`([a-z_]+/[\w/.{},]*)`", prose))
    assert len(named) > 20
    # `a/{b,c}` names two.
    each = {name.replace(braces, one) for name in named for braces, one in _choices(name)}
    roots = (ROOT, *PACKAGES.values())
    assert [n for n in sorted(each) if not any((r / n).exists() or (r / f"{n}.py").is_file() for r in roots)] == []


def _choices(name: str) -> list[tuple[str, str]]:
    braces = re.search(r"\{([^}]*)\}", name)
    return [(braces[0], one) for one in braces[1].split(",")] if braces else [(name, name)]


def test_no_tracked_file_names_the_place_it_was_built_in() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in {".png", ".gguf"}:
            found += [name for line in path.read_text(errors="replace").splitlines() if _FORBIDDEN.search(line)]
    assert found == []
