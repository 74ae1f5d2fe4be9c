"""llama.cpp's own server as a peer: started beside the measurement where the package `xllamacpp` is installed.

Run as a file, this is the child: it needs nothing but `xllamacpp`, so that it may live in an environment of its own. It
serves on a free port, says its address on stdout and ends when its stdin does, so it never outlives who started it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from contextlib import suppress

PEER = "llama.cpp"
SLOTS = 4
WINDOW_TOKENS = 32768
"""Of all slots together, as many KV cells as akashic takes by default."""
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 10.0


def serve(options: dict[str, str | int]) -> None:
    """Serve until stdin ends. Raises RuntimeError when the model can't be loaded."""
    # Not a dependency: mypy would ask for it.
    xllamacpp = importlib.import_module("xllamacpp")

    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.port, params.use_jinja, params.kv_unified, params.verbosity = 0, True, True, 0
    params.n_parallel, params.n_ctx = options["slots"], options["window_tokens"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    server = xllamacpp.Server(params)
    print(json.dumps({"url": f"{server.listening_address}/v1"}), flush=True)
    sys.stdin.read()


class LlamaServer:
    """The child. Use it in a `with`."""

    def __init__(self, model: str, python: str | None, *, threads: int) -> None:
        self._python = _interpreter(python)
        self._options = {"model": model, "slots": SLOTS, "window_tokens": WINDOW_TOKENS, "threads": threads}
        self._child: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> LlamaServer:
        command = [self._python, __file__, json.dumps(self._options)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            self.url = self._address(self._child)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _address(self, child: subprocess.Popen[str]) -> str:
        """Wait until it has loaded its model, and return its URL. Raises EngineError with its last words."""
        import threading

        from akashic_daemon.errors import EngineError

        assert child.stdout is not None
        assert child.stderr is not None
        words: list[str] = []
        errors = child.stderr
        # Read on for good: a full pipe would stop it.
        listener = threading.Thread(target=lambda: words.extend(errors), daemon=True)
        listener.start()
        alarm = threading.Timer(_START_TIMEOUT_S, child.kill)
        alarm.start()
        try:
            line = child.stdout.readline()
        finally:
            alarm.cancel()
        try:
            return str(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError):
            child.kill()
            listener.join(_STOP_TIMEOUT_S)
            said = "".join(words[-4:]).strip() or "it said nothing"
            raise EngineError(
                f"starting {PEER}'s server on {self._options['model']}: {said}",
                hint=f"is xllamacpp in {self._python}, and does it know this model?",
            ) from None


def _interpreter(python: str | None) -> str:
    """Return whose Python runs it. Raises Unsupported when ours has no xllamacpp."""
    from akashic_daemon.errors import Unsupported

    if python is None and importlib.util.find_spec("xllamacpp") is None:
        raise Unsupported(
            f"starting {PEER}'s server: the package xllamacpp isn't installed",
            hint=f"pip install xllamacpp; in an environment of its own: --peer {PEER}=/path/to/its/bin/python",
        )
    return python or sys.executable


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
