"""Arguments that calls are given (`arguments` in a map): the current span's headers, and the endpoint of traces.

Nothing else can be given, and nothing of the caller's is replaced: an argument that has a value keeps it, a header
that is there stays. So a client or an engine that can carry trace context does, and computes what it did before.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from autoinstr.interruptions import is_the_programs
from autoinstr.maps.model import ArgumentsEntry
from autoinstr.maps.values import MISSING, argument_getter, parameters_of
from autoinstr.maps.words import did_you_mean
from autoinstr.notices import describe, say
from autoinstr.patch import compiling, functions, targets
from autoinstr.patch.ledger import APPLIED, REFUSED, Installed, Ledger, Record, carries
from autoinstr.patch.ledger import MISSING as NOT_THERE
from autoinstr.patch.waiting import Waiting
from autoinstr.spans.opening import nearest_open

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_propagator = TraceContextTextMapPropagator()


def trace_headers() -> dict[str, str] | None:
    """The W3C headers of the current span; None where there is none."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers or None


def traces_endpoint() -> str | None:
    """Where OpenTelemetry's variables send traces, as an exporter is to be told it; None where they do not say.

    Over HTTP the general endpoint is the folder of the one for traces. The protocol goes with it by its own variable,
    since nobody asks for it: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """
    protocol, general_protocol, own, general = (
        os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()
        for name in ("TRACES_PROTOCOL", "PROTOCOL", "TRACES_ENDPOINT", "ENDPOINT")
    )
    protocol = protocol or general_protocol
    if not (own or general) or protocol not in ("", "grpc", "http/protobuf"):
        return None
    if protocol:
        os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = protocol
    return own or (f"{general.rstrip('/')}/v1/traces" if protocol == "http/protobuf" else general)


_WORDS: dict[str, Callable[[], Any]] = {"trace_headers": trace_headers, "traces_endpoint": traces_endpoint}


class ArgumentPatcher:
    """Patches functions as their modules are imported. What it installs is in `ledger`, whose owner undoes it."""

    def __init__(self, ledger: Ledger, on_missing: Callable[[str], None] | None = None) -> None:
        self._ledger = ledger
        self._say = on_missing or say
        self._waiting: Waiting[_Claim] = Waiting(self.patch_module)

    def add(self, entries: Iterable[ArgumentsEntry], selects: Callable[[str], bool], switches: Collection[str]) -> None:
        """Take up those entries whose group is selected or whose switch is on."""
        claims = [
            _Claim(entry)
            for entry in entries
            if (selects(entry.group) if entry.group is not None else entry.switch in switches)
        ]
        self._ledger.records += [claim.record for claim in claims]
        self._waiting.add((claim.entry.target.module, claim) for claim in claims)

    def stop(self) -> None:
        """Patch nothing from now on, and give nothing to what is patched."""
        for claim in self._waiting.stop():
            for giver in claim.givers:
                giver.off = True

    def patch_module(self, module: Any, name: str) -> None:
        """Patch what waits for `module`, which stands in `sys.modules` under `name`; again after a reload."""
        for claim in self._waiting.on(name):
            try:
                place = targets.find(module, claim.entry.target.qualname, name)
                raw = targets.underlying(place.raw)
                if not any(carries(raw, giver) for giver in claim.givers):
                    self._install(place, claim)
            except Exception as error:
                self._leave_out(claim, error)

    def _install(self, place: targets.Found, claim: _Claim) -> None:
        made: list[tuple[_Giver, Any]] = []

        def wrap(function: Any) -> Any:
            giver = _Giver(claim.entry, function)
            made.append((giver, _wrapped(function, giver)))
            return made[-1][1]

        missing = [module for module in claim.entry.needs if not _is_importable(module)]
        if missing:
            raise targets.TargetRefused(f"it needs {missing[0]}, which can't be imported")
        new = targets.rebuilt(place, wrap)
        place.replace(new)
        giver, wrapper = made[-1]
        claim.givers.append(giver)
        claim.record.state, claim.record.why = APPLIED, ""
        self._ledger.installed.append(Installed(place, new, [giver], [claim.record], wrapper))

    def _leave_out(self, claim: _Claim, error: Exception) -> None:
        missing = isinstance(error, targets.TargetMissing)
        ours = isinstance(error, (targets.TargetMissing, targets.TargetRefused))
        why = str(error) if ours else describe(error)
        claim.record.state, claim.record.why = (NOT_THERE if missing else REFUSED), why
        entry = claim.entry
        if not (missing and entry.optional):
            claim.record.said = True
            names = ", ".join(name for name, _ in (*entry.set, *entry.add))
            self._say(f"{entry.place}: {entry.target}: {why}; {names}: left as the program has it")


class _Claim:
    def __init__(self, entry: ArgumentsEntry) -> None:
        self.entry = entry
        self.record = Record(f"arguments of {entry.map}", str(entry.target), entry.place)
        self.givers: list[_Giver] = []


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # what is above it can't be imported
        return False


class _Giver:
    """Gives calls of one function what its entry says. `off` ends it."""

    def __init__(self, entry: ArgumentsEntry, function: Any) -> None:
        parameters = parameters_of(function)
        for name, _ in (*entry.set, *entry.add):
            if name not in parameters:
                hint = did_you_mean(name, parameters)
                raise targets.TargetMissing(f"it takes no argument {name!r}{hint}")
        self.off = False
        self._target = str(entry.target)
        self._within = entry.within
        self._where: Callable[[Args, Kwargs], Any] | None = None
        if entry.where is not None:
            where = entry.where
            get = argument_getter(where.name or "", parameters) if where.root == "args" else _first
            self._where = lambda args, kwargs: where.walk(get(args, kwargs))
        self._set = [(name, parameters[name][0], word) for name, word in entry.set]
        self._add = [(name, parameters[name][0], word) for name, word in entry.add]

    def __reduce__(self) -> tuple[Any, ...]:
        # a patched function that is pickled by value takes one along that gives nothing
        return (_giving_nothing, ())

    def __call__(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """What to call the function with. Never raises."""
        if self.off:
            return args, kwargs
        try:
            return self._given(args, kwargs)
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"a call of {self._target} is left as it is: {describe(error)}", once=f"arguments {self._target}")
            return args, kwargs

    def _given(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if self._within and nearest_open(self._within) is None:
            return args, kwargs
        if self._where is not None and self._where(args, kwargs) in (None, MISSING):
            return args, kwargs
        for name, position, word in self._set:
            if _value(name, position, args, kwargs) is None:
                value = _WORDS[word]()
                if value is not None:
                    args, kwargs = _put(name, position, value, args, kwargs)
                elif word == "traces_endpoint":
                    say(f"{self._target}: no OTLP endpoint of traces is set, so {name} is left as it is")
        for name, position, word in self._add:
            headers = _WORDS[word]()
            if headers:
                before = _value(name, position, args, kwargs)
                after = _added(before, headers)
                if after is not before:
                    args, kwargs = _put(name, position, after, args, kwargs)
        return args, kwargs


def _giving_nothing() -> Callable[[Args, Kwargs], tuple[Args, Kwargs]]:
    return lambda args, kwargs: (args, kwargs)


def _first(args: Args, kwargs: Kwargs) -> Any:
    return args[0] if args else MISSING


def _value(name: str, position: int | None, args: Args, kwargs: Kwargs) -> Any:
    return args[position] if position is not None and len(args) > position else kwargs.get(name)


def _put(name: str, position: int | None, value: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    if position is not None and len(args) > position:
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, name: value}


def _added(headers: Any, more: dict[str, str]) -> Any:
    """`headers` with `more`, in a copy; the very object where it has one of these, or is of an unknown kind."""
    if headers is None:
        return more
    pairs = not isinstance(headers, Mapping)
    if pairs and type(headers) not in (list, tuple):
        return headers
    names = (pair[0] for pair in headers) if pairs else iter(headers)
    if any(_text(name).lower() in more for name in names):
        return headers
    if pairs:
        return type(headers)([*headers, *more.items()])
    copy = {**headers} if type(headers) is dict else headers.copy()  # a multidict keeps what it has twice
    if copy is headers:  # one that takes itself for immutable
        return headers
    copy.update(more)
    return copy


def _text(name: Any) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)


def _wrapped(function: Any, give: _Giver) -> Any:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise targets.TargetRefused("it is a generator")
    wrapper = _coroutine(function, give) if inspect.iscoroutinefunction(function) else _plain(function, give)
    return functions.dress(wrapper, function)


def _coroutine(function: Any, give: _Giver) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = give(args, kwargs)
        body = function(*args, **kwargs)
        del args, kwargs  # see functions.wrap_function
        return await body

    return wrapper


def _plain(function: Any, give: _Giver) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiling.torch_is is None or not compiling.torch_is():
            args, kwargs = give(args, kwargs)
        held: list[Any] = [kwargs, args]
        del args, kwargs
        return function(*held.pop(), **held.pop())

    return wrapper
