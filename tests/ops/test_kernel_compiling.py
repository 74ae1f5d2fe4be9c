"""Kernels are compiled for a GPU, also where there is none: the interpreter runs what the compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_choice_and_attention_compile_for_rows_of_every_order_of_length(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(TESTS / "compile_kernels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split().count("block_select_kernel") == 4
