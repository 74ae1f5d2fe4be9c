"""An outside client's verdict: PyPI's `cache-pressure` (agent-sim and abort-sim) against a daemon on the default model.

    python -m venv /tmp/cp && /tmp/cp/bin/pip install cache-pressure
    python tests/bench/cache_pressure.py --python /tmp/cp/bin/python [--sessions 2] [--main-tokens 3000] [--tiny]

The sizes fit a window of 8,192 tokens. What its verdicts ask: agent-sim, that each session's last turn finds 66 % of the
context in the cache and has its first token within 1.75 x the median of the three main turns before; abort-sim, that 95 % of
a prompt is reused after an answer was broken off. With the default model, abort-sim at its least (2,000 tokens) is
75 s of computing. With --tiny a random model of two layers answers, which speaks the default one's tokenizer: for slow
machines. The exit status is 1 when one of its verdicts isn't a pass. The client is no dependency: it lives in an environment of its own. Its agent-sim (0.6.3) holds an f-string that only Python 3.12 can
read; before that a copy is run in which this one is written otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from daemon_process import DaemonProcess
from tiny_smol import registered_tiny_smol

_RUN = """
import importlib.util, sys

def load(name):
    spec = importlib.util.find_spec("cache_pressure." + name)
    text = spec.loader.get_source(spec.name)
    if sys.version_info < (3, 12):
        old = "f'{summary['main_reuse_pct']:.0f}%'"
        text = text.replace(old, "format(summary['main_reuse_pct'], '.0f')")
    module = sys.modules[spec.name] = type(sys)(spec.name)
    module.__file__ = spec.origin
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module

agent_sim = load("agent_sim")  # the other imports it
(agent_sim if sys.argv[1] == "agent_sim" else load(sys.argv[1])).main(sys.argv[2:])
"""
_STEPS = 5


def agent_sizes(main: int) -> list[str]:
    """Return agent-sim's sizes for main contexts of so many tokens, in its own proportions but for the number of steps."""
    part = {
        "--main-tokens": main,
        "--step-tokens": main // _STEPS,
        "--sub-tokens": main * 4 // 15,
        "--finalize-tokens": main * 2 // 25,
    }
    return [word for name, size in part.items() for word in (name, str(size))]


def abort_sizes(main: int) -> list[str]:
    """Return abort-sim's: an answer is broken off after 20 tokens, as a small model may have no more to say.

    Its new instruction is about 90 tokens, and 95 % of a prompt must be reused: a context below 2,000 can't pass.
    """
    return ["--context-tokens", str(max(2000, main)), "--thinking-tokens", "20", "--max-tokens", "1024", "--runs", "2"]


def run(python: str, tool: str, daemon: DaemonProcess, model: str, *options: str) -> bool:
    """Run one of its programs; return whether it passed."""
    key = daemon.headers["authorization"].removeprefix("Bearer ")
    print(f"== {tool.replace('_', '-')} {' '.join(options)}", flush=True)
    asked = ["--base-url", f"{daemon.url}/v1", "--api-key", key, "--model", model, *options]
    done = subprocess.run([python, "-c", _RUN, tool, *asked], check=False)
    print(
        f"== {tool.replace('_', '-')}: {'pass' if done.returncode == 0 else f'FAILED ({done.returncode})'}", flush=True
    )
    return done.returncode == 0


def main() -> int:
    """Run both against a daemon in a home of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has cache-pressure")
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--main-tokens", type=int, default=3000, help="less on a slow machine; at most 6000")
    parser.add_argument("--tools", nargs="+", choices=("agent_sim", "abort_sim"), default=["agent_sim", "abort_sim"])
    parser.add_argument("--salt", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="a random small model instead of the default one")
    options = parser.parse_args()
    if subprocess.run([options.python, "-c", "import cache_pressure"], check=False).returncode:
        sys.exit(f"{options.python} has no cache-pressure; make an environment with it (see above)")
    salt = ["--salt", str(options.salt)]
    with tempfile.TemporaryDirectory(prefix="akp") as home:
        model = registered_tiny_smol(Path(home)) if options.tiny else "smollm2"
        daemon = DaemonProcess(Path(home), real=True, settings={"model.default": model})
        with daemon:
            sessions = ["--sessions", str(options.sessions), "--no-viz", "--max-tokens", "48"]
            asked = {
                "agent_sim": [*sessions, *agent_sizes(options.main_tokens), *salt],
                "abort_sim": [*abort_sizes(options.main_tokens), *salt],
            }
            passed = [run(options.python, tool, daemon, model, *asked[tool]) for tool in options.tools]
            passed.append(daemon.end(10) == 0)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
