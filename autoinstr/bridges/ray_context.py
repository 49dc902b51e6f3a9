"""Trace context with every remote call of Ray: actor methods, `__init__`, generators, tasks.

Two carriers, for Ray has no place for headers while its own tracing is off:

- An actor's method, and its `__init__`, accept `_ray_trace_ctx`, which Ray adds to their signatures and drops on
  arrival. The headers go in it.
- Generators and tasks do not have it. There the headers go behind the comma in the metadata of the call's first
  argument name: a call travels as a flat list of names and values, each with metadata of which Ray reads the part
  before the first comma. A call without arguments has no names, and its spans no parent: what else travels with a
  call is the user's to see (its name), decides in which worker it runs (its environment), or is read by no worker
  (its labels); and an argument of our own would be the function's own in a worker without us.

Either way the user's function sees nothing, and a worker without us ignores them. Where Ray's own tracing is on,
nothing is added: its own headers are read, and left in place for its own spans.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from importlib import import_module
from typing import Any, TypeVar

from opentelemetry import context as context_api
from opentelemetry.context import Context

from autoinstr.bridges import ray_carrier
from autoinstr.notices import describe, say
from autoinstr.patch.importlib_bootstrap import in_file
from autoinstr.spans.opening import attach, detach

ARGUMENT = "_ray_trace_ctx"
_MARK = b",autoinstr:"


def install(ray: Any, replace: Callable[[Any, str, Callable[[Any], Any]], None]) -> None:
    signature = import_module("ray._common.signature")
    serialization = import_module("ray._private.serialization")
    worker = import_module("ray._private.worker")
    raylet = import_module("ray._raylet")
    serialized, pack = raylet.MessagePackSerializedObject, raylet.MessagePackSerializer.dumps
    marked = import_module("ray._private.ray_constants").OBJECT_METADATA_TYPE_CROSS_LANGUAGE + _MARK
    ray_traces: Callable[[], bool] = import_module("ray.util.tracing.tracing_helper")._is_tracing_enabled
    actors, tasks = vars(ray.actor), vars(ray.remote_function)

    # -- what goes out

    def make_flatten(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def flatten_args(signature_parameters: Any, args: Any, kwargs: Any) -> Any:
            headers = None
            caller = sys._getframe(1).f_globals  # Ray Serve batches by the same function, and sends nothing
            if (caller is actors or caller is tasks) and ARGUMENT not in kwargs and not ray_traces():
                try:
                    headers = ray_carrier.outgoing()
                except Exception as error:
                    say(f"a call over Ray goes without its context: {describe(error)}", once="ray outgoing")
            if headers is None:
                return original(signature_parameters, args, kwargs)
            if any(parameter.name == ARGUMENT for parameter in reversed(signature_parameters)):
                return original(signature_parameters, args, {**kwargs, ARGUMENT: headers})
            flat = original(signature_parameters, args, kwargs)
            if flat:
                flat[0] = _Sent(flat[0], headers)
            return flat

        return flatten_args

    def make_serialize(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def serialize(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if type(value) is not _Sent:
                return original(self, value, *args, **kwargs)
            metadata = marked + json.dumps(value.headers).encode()
            return serialized(metadata, pack(value.name, None), [], None)

        # what this Ray does not do as known shows here, before anything is changed
        serialized(marked + b"{}", pack(signature.DUMMY_TYPE, None), [], None)

        return serialize

    # -- what comes in

    def make_deserialize(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def deserialize_objects(self: Any, serialized_objects: Any, *args: Any, **kwargs: Any) -> Any:
            values = original(self, serialized_objects, *args, **kwargs)
            try:
                metadata = serialized_objects[0][1] if serialized_objects else None
                if metadata and metadata.startswith(marked):
                    values[0] = _Received(values[0], json.loads(metadata[len(marked) :]))
            except Exception as error:
                say(f"a call over Ray came without its context: {describe(error)}", once="ray incoming")
            return values

        return deserialize_objects

    def make_recover(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def recover_args(flattened_args: Any) -> Any:
            first = flattened_args[0] if flattened_args else None
            if type(first) is not _Received:
                return original(flattened_args)
            args, kwargs = original([first.name, *flattened_args[1:]])
            kwargs[ARGUMENT] = first.headers
            return args, kwargs

        return recover_args

    def make_executor_maker(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _make_actor_method_executor(self: Any, method_name: str, method: Any) -> Any:
            return _receiving(original(self, method_name, method), ray_traces)

        return _make_actor_method_executor

    def make_get_execution_info(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_execution_info(self: Any, job_id: Any, function_descriptor: Any) -> Any:
            info = original(self, job_id, function_descriptor)
            if type(info.function) is types.FunctionType and info.function in _receivers:  # an actor's
                return info
            return info._replace(function=_receiving(info.function, ray_traces))

        return get_execution_info

    # From here on a call may arrive with headers, and only functions that were made under these patches take them
    # off. A worker that runs already when we come has others.
    fresh = not (worker.global_worker.connected and worker.global_worker.mode == worker.WORKER_MODE)
    if fresh:
        functions = import_module("ray._private.function_manager")
        functions.FunctionExecutionInfo(function=None, function_name="", max_calls=0)._replace(function=None)
        manager = functions.FunctionActorManager
        replace(manager, "_make_actor_method_executor", make_executor_maker)
        replace(manager, "get_execution_info", make_get_execution_info)
        replace(signature, "recover_args", make_recover)
        replace(worker.Worker, "deserialize_objects", make_deserialize)
    replace(serialization.SerializationContext, "serialize", make_serialize)
    replace(signature, "flatten_args", make_flatten)


class _Sent:
    """The first argument name of a call, with the headers that go in its metadata."""

    __slots__ = ("headers", "name")

    def __init__(self, name: Any, headers: dict[str, str]) -> None:
        self.name = name
        self.headers = headers


class _Received(_Sent):
    """The same, on its arrival."""

    __slots__ = ()


_HIDDEN_FILE = "<autoinstr for ray/_private/, not counted as importlib._bootstrap is not>"
"""Ray leaves frames of a `ray/_private/` out of the text of a RayTaskError, but not the carets below a line of source:
a name in angle brackets has no source. `warnings` and `logging` pass over the frame when they look for a caller."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _hidden(function: _Function) -> _Function:
    """Have an error that comes through `function`, or what it makes, read as it does without us: a decorator."""
    function.__code__ = in_file(function.__code__, _HIDDEN_FILE)
    return function


@_hidden
def _receiving(function: Callable[..., Any], ray_traces: Callable[[], bool]) -> Callable[..., Any]:
    """`function`, run in the context that came with the call; it gets its own arguments only."""

    @functools.wraps(function)
    def receive(*args: Any, **kwargs: Any) -> Any:
        headers = kwargs.get(ARGUMENT)
        if headers is None:
            return function(*args, **kwargs)
        if not ray_traces():
            del kwargs[ARGUMENT]
        try:
            context = ray_carrier.incoming(headers)
        except Exception as error:
            say(f"a call over Ray came with a context that can't be read: {describe(error)}", once="ray incoming")
            context = None
        if context is None:
            return function(*args, **kwargs)
        token = attach(context)
        try:
            result = function(*args, **kwargs)
        finally:
            detach(token)
        drive = _DRIVERS.get(type(result))
        return result if drive is None else drive(result, context)

    _receivers.add(receive)
    return receive


_receivers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Every function that takes the headers off before it calls on."""


# Each is consumed by one task or thread of Ray's and nobody else, so the context may stay current while a coroutine
# waits; between the items of a generator it is put away, for the thread is Ray's then.


@_hidden
async def _coroutine(body: Coroutine[Any, Any, Any], context: Context) -> Any:
    token = attach(context)
    try:
        return await body
    finally:
        detach(token)


@_hidden
def _generator(body: Generator[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    try:
        while True:
            token = attach(context)
            try:
                item = next(body)
            except StopIteration as stop:
                return stop.value
            finally:
                context = context_api.get_current()
                detach(token)
            yield item
            del item  # what Ray has stored is freed while the next one is made
    finally:
        _close(body, context)


def _close(body: Generator[Any, Any, Any], context: Context) -> None:
    if inspect.getgeneratorstate(body) == inspect.GEN_CLOSED:
        return
    token = attach(context)
    try:
        body.close()
    finally:
        detach(token)


@_hidden
async def _async_generator(body: AsyncGenerator[Any, Any], context: Context) -> AsyncGenerator[Any, Any]:
    try:
        while True:
            token = attach(context)
            try:
                item = await body.__anext__()
            except StopAsyncIteration:
                return
            finally:
                context = context_api.get_current()
                detach(token)
            yield item
            del item
    finally:
        await body.aclose()


_DRIVERS: dict[type, Callable[[Any, Context], Any]] = {
    types.CoroutineType: _coroutine,
    types.GeneratorType: _generator,
    types.AsyncGeneratorType: _async_generator,
}
