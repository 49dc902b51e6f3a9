"""One trace over the processes of a run: the parent's context reaches a child, and a fork shares nothing.

How a child process learns of the span it was started in:

- `subprocess` (and so asyncio's, torchrun's and every launcher's): `TRACEPARENT` in the child's environment, as
  W3C spells it. `os.environ` stays as it is: another thread may be starting another child right now, or copying it.
- `multiprocessing` by spawn or forkserver: the same words in the preparation data that its parent sends anyway.
- fork: the context is in memory.

Whoever finds a `TRACEPARENT` of the run's own trace takes it as the parent of its roots; that of another trace (a
CI system's, say) is left alone, since a run is one trace. A forked child sends and writes its own spans only, on
connections of its own, and a `multiprocessing` child, which ends without `atexit`, still flushes.
"""

from __future__ import annotations

import contextvars
import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from autoinstr import resource
from autoinstr.patch.importing import when_imported

PARENT = "TRACEPARENT"
STATE = "TRACESTATE"
JOINS = "AUTOINSTR_RUN_ID"
"""A child without this in its environment is not of this run, and gets no parent."""
_PREPARATION = "autoinstr_parent"
_ENV_POSITION = 10
"""Where `env` stands among `Popen`'s positional arguments."""

_propagator = TraceContextTextMapPropagator()


def carrier() -> dict[str, str]:
    """The current span, and what is known of the run, as environment variables; empty where there is no span."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    variables = {name.upper(): value for name, value in headers.items() if name.upper() in (PARENT, STATE)}
    told = resource.to_hand_down() if variables else None
    return {**variables, resource.HANDED_DOWN: told} if told is not None else variables


def adopt_parent(variables: Mapping[str, str], trace_id: int) -> bool:
    """Make the span that `variables` name the parent of this process's roots, in every thread, if it is the run's."""
    headers = {name.lower(): variables[name] for name in (PARENT, STATE) if variables.get(name)}
    parent = _propagator.extract(headers, Context())
    if trace.get_current_span(parent).get_span_context().trace_id != trace_id:
        return False
    runtime = getattr(context_api, "_RUNTIME_CONTEXT", None)
    current = getattr(runtime, "_current_context", None)
    if runtime is not None and isinstance(current, contextvars.ContextVar) and not current.get():
        # the default, so that a thread's first span has it too
        runtime._current_context = contextvars.ContextVar(current.name, default=parent)
    else:
        context_api.attach(parent)
    return True


class Bridge:
    """The patches of one process. `end_child` flushes at the end of a `multiprocessing` child; it may come twice."""

    def __init__(self, provider: Any, trace_id: int, end_child: Callable[[], None]) -> None:
        self._provider = provider
        self._trace_id = trace_id
        self._end_child = end_child
        self._undo: list[Callable[[], Any]] = []
        self._installed = False

    def install(self) -> None:
        self._installed = True
        os.register_at_fork(after_in_child=self._in_child)
        self._undo += [
            when_imported("subprocess", self._patch_subprocess),
            when_imported("multiprocessing.process", self._patch_process),
            when_imported("multiprocessing.spawn", self._patch_spawn),
        ]

    def remove(self) -> None:
        self._installed = False
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # -- the parent's side ----------------------------------------------------------------------------

    def _patch_subprocess(self, subprocess: Any) -> None:
        def wrap(original: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(original)
            def __init__(popen: Any, *args: Any, **kwargs: Any) -> None:
                try:
                    args, kwargs = _with_parent(args, kwargs)
                except Exception:  # the child is started as it was asked for
                    pass
                original(popen, *args, **kwargs)

            return __init__

        self._replace(subprocess.Popen, "__init__", wrap)

    def _patch_spawn(self, spawn: Any) -> None:
        def tell(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
            @functools.wraps(original)
            def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
                data = original(*args, **kwargs)
                variables = carrier()
                if variables:
                    data[_PREPARATION] = variables
                return data

            return get_preparation_data

        def hear(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def prepare(data: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
                variables = data.get(_PREPARATION)
                if variables:
                    adopt_parent(variables, self._trace_id)
                    resource.hear(variables.get(resource.HANDED_DOWN, "{}"))
                return original(data, *args, **kwargs)

            return prepare

        self._replace(spawn, "get_preparation_data", tell)
        self._replace(spawn, "prepare", hear)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        ours = wrap(original)
        setattr(owner, name, ours)

        def undo() -> None:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)

        self._undo.append(undo)

    # -- the child's side -----------------------------------------------------------------------------

    def _patch_process(self, process: Any) -> None:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def _bootstrap(child: Any, *args: Any, **kwargs: Any) -> Any:
                status = original(child, *args, **kwargs)
                self._end_child()  # `os._exit` comes next, and no `atexit`
                return status

            return _bootstrap

        self._replace(process.BaseProcess, "_bootstrap", wrap)

    def _in_child(self) -> None:
        if not self._installed:
            return
        try:
            keep_own_spans(self._provider)
            _describe_child(self._provider)
        except Exception:  # a child must come to life, whatever its SDK looks like
            pass


class OwnSpans(SpanProcessor):
    """Stands before a forked child's processors: spans that were open at the fork belong to the parent."""

    def __init__(self, processors: tuple[SpanProcessor, ...]) -> None:
        self.processors = processors
        self._own: set[int] = set()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.context is not None:
            self._own.add(span.context.span_id)
        for processor in self.processors:
            processor.on_start(span, parent_context)

    def _on_ending(self, span: Span) -> None:
        if span.context is not None and span.context.span_id in self._own:
            for processor in self.processors:
                processor._on_ending(span)

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or span.context.span_id not in self._own:
            return
        self._own.discard(span.context.span_id)
        for processor in self.processors:
            processor.on_end(span)

    def on_rest(self, span: Any, since_ns: int) -> None:
        self._tell_own("on_rest", span, since_ns)

    def on_resume(self, span: Any) -> None:
        self._tell_own("on_resume", span)

    def _tell_own(self, what: str, span: Any, *about: Any) -> None:
        if span.context.span_id in self._own:
            for processor in self.processors:
                if hasattr(processor, what):
                    getattr(processor, what)(span, *about)

    def shutdown(self) -> None:
        for processor in self.processors:
            processor.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        flushed = [processor.force_flush(timeout_millis) for processor in self.processors]
        return all(flushed)


def keep_own_spans(provider: Any) -> None:
    """Let a forked child's provider ignore the ends of spans that its parent began."""
    active = getattr(provider, "_active_span_processor", None)
    processors = getattr(active, "_span_processors", None)
    if not isinstance(processors, tuple):
        return
    if len(processors) == 1 and isinstance(processors[0], OwnSpans):  # a child of a child
        processors = processors[0].processors
    # not by `add_span_processor`: another thread may have held its lock as the process forked
    active._span_processors = (OwnSpans(processors),)  # type: ignore[union-attr]


def _describe_child(provider: Any) -> None:
    inherited = getattr(provider, "_resource", None)
    if not isinstance(inherited, Resource) or "process.pid" not in inherited.attributes:
        return
    resource.spread(inherited.merge(Resource({"process.pid": os.getpid()})), provider)


def _with_parent(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`Popen`'s arguments, with the current span in the child's environment."""
    variables = carrier()
    if not variables or _is_ray(args[0] if args else kwargs.get("args")):
        return args, kwargs
    given = args[_ENV_POSITION] if len(args) > _ENV_POSITION else kwargs.get("env")
    env: dict[Any, Any] = environment() if given is None else dict(given)
    there = {os.fsdecode(name): value for name, value in env.items()}
    if not there.get(JOINS):
        return args, kwargs
    parent = there.get(PARENT)
    if given is not None and (None if parent is None else os.fsdecode(parent)) != os.environ.get(PARENT):
        return args, kwargs  # a parent of the user's own choice
    for name in (PARENT, STATE, resource.HANDED_DOWN):
        env.pop(name, None)
        env.pop(os.fsencode(name), None)
    env.update(variables)
    if len(args) > _ENV_POSITION:
        return (*args[:_ENV_POSITION], env, *args[_ENV_POSITION + 1 :]), kwargs
    return args, {**kwargs, "env": env}


def _is_ray(command: Any) -> bool:
    """Whether a Ray process is started: all its workers would inherit the span that happened to call `ray.init`."""
    ray = getattr(sys.modules.get("ray"), "__file__", None)
    if not ray or isinstance(command, (str, bytes)):
        return False
    folder = os.path.dirname(ray) + os.sep
    return any(str(word).startswith(folder) for word in list(command)[:4])


def environment() -> dict[Any, Any]:
    """What a child would inherit: the process's environment itself, which C libraries write past `os.environ`."""
    import ctypes

    try:
        entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    except (ValueError, OSError):  # not on this platform
        return dict(os.environ)
    found: dict[Any, Any] = {}
    index = 0
    while (entry := entries[index]) is not None:
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(name, value)
        index += 1
    return found
