"""Every script of tests/bench says what it is for, how it is called, and stands in their list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
SCRIPTS = sorted(BENCH.glob("*.py"))
CALLED = [script for script in SCRIPTS if "__main__" in script.read_text(encoding="utf-8")]


def test_the_list_names_each_script_and_nothing_that_is_gone() -> None:
    text = (BENCH / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in SCRIPTS} == set(re.findall(r"`(\w+\.py)`", text)) - {"NAME.py"}
    rows = re.findall(r"^\| `(\w+\.py)` \|", text, re.MULTILINE)
    assert sorted(rows) == [path.name for path in CALLED]


@pytest.mark.parametrize("script", CALLED, ids=lambda path: path.name)
def test_a_scripts_head_says_how_it_is_called_and_its_arguments_are_explained(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    head = ast.get_docstring(ast.parse(source))
    assert head is not None
    assert f"python tests/bench/{script.name}" in head
    assert "ArgumentParser(" in source
