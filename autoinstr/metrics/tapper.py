"""From metric taps to tapped functions: installed, recorded and undone like every other patch."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from autoinstr.maps import values
from autoinstr.maps.metric_model import MetricTap
from autoinstr.metrics.instruments import Instruments
from autoinstr.metrics.taps import Tap
from autoinstr.notices import describe, say
from autoinstr.patch import arguments, compiling, functions, targets
from autoinstr.patch.importlib_bootstrap import uncounted
from autoinstr.patch.ledger import APPLIED, MISSING, REFUSED, Installed, Ledger, Record, carries
from autoinstr.patch.waiting import Waiting


class _Claim:
    """One tap that waits for its module, and what was made of it there."""

    def __init__(self, entry: MetricTap) -> None:
        self.entry = entry
        self.record = Record(f"metrics of {entry.map}", str(entry.target), entry.place)
        self.taps: list[Tap] = []


class Tapper:
    """Taps functions as their modules are imported. What it installs is in `ledger`, whose owner undoes it."""

    def __init__(
        self, ledger: Ledger, instruments: Instruments | None = None, on_missing: Callable[[str], None] | None = None
    ) -> None:
        self._ledger = ledger
        self._instruments = instruments or Instruments()
        self._say = on_missing or say
        self._waiting: Waiting[_Claim] = Waiting(self.tap_module)

    def add(self, taps: Iterable[MetricTap]) -> None:
        """Take up taps, which wait for their modules."""
        claims = [_Claim(entry) for entry in taps]
        self._ledger.records += [claim.record for claim in claims]
        self._waiting.add((claim.entry.target.module, claim) for claim in claims)

    def stop(self) -> None:
        """Tap nothing from now on, and take nothing from what is tapped."""
        for claim in self._waiting.stop():
            for tap in claim.taps:
                tap.off = True

    def tap_module(self, module: Any, name: str) -> None:
        """Tap what waits for `module`, which stands in `sys.modules` under `name`; again after a reload."""
        by_function: dict[str, list[_Claim]] = {}
        for claim in self._waiting.on(name):
            by_function.setdefault(claim.entry.target.qualname, []).append(claim)
        for qualname, those in by_function.items():
            try:
                place = targets.find(module, qualname, name)
                raw = targets.underlying(place.raw)
                waiting = [c for c in those if not any(carries(raw, tap) for tap in c.taps)]
                if waiting:
                    self._install(place, waiting)
            except Exception as error:
                self._leave_out(those, error)

    def _install(self, place: targets.Found, claims: list[_Claim]) -> None:
        made: list[Tap] = []
        wrappers: list[Any] = []

        def wrap(function: Any) -> Any:
            made[:] = [Tap(claim.entry, function, self._instruments) for claim in claims]
            wrappers.append(wrap_tapped(function, made))
            return wrappers[-1]

        new = targets.rebuilt(place, wrap)
        place.replace(new)
        for claim, tap in zip(claims, made, strict=True):
            claim.taps.append(tap)
            claim.record.state, claim.record.why = APPLIED, ""
        self._ledger.installed.append(
            Installed(place, new, list(made), [claim.record for claim in claims], wrappers[-1])
        )
        for claim in claims:
            if not claim.entry.optional:
                for text in arguments.not_taken_by_tapped(targets.underlying(place.raw), claim.entry):
                    self._say(f"{claim.entry.place}: metrics: {text}")

    def _leave_out(self, claims: list[_Claim], error: Exception) -> None:
        missing = isinstance(error, targets.TargetMissing)
        ours = isinstance(error, (targets.TargetMissing, targets.TargetRefused))
        why = str(error) if ours else describe(error)
        for claim in claims:
            claim.record.state, claim.record.why = (MISSING if missing else REFUSED), why
            if not (missing and claim.entry.optional):
                claim.record.said = True
                self._say(f"{claim.entry.place}: metrics of {claim.entry.target}: {why}; they are left out")


def wrap_tapped(function: Any, taps: list[Tap]) -> Any:
    """A function that does what `function` does, and hands each call to `taps`.

    Raises:
        TargetRefused: where a tap needs the end of a call that has no single one.
    """
    needs_end = any(tap.needs_end for tap in taps)
    if needs_end and inspect.isasyncgenfunction(function):
        return functions.dress(_around_async_generator(function, taps), function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        if needs_end:
            raise targets.TargetRefused("a generator has neither a return nor a duration that a series could take")
        return functions.wrap_beside(
            function, before=lambda args, kwargs: _raised(_wanted(taps, args, kwargs), args, kwargs)
        )
    if inspect.iscoroutinefunction(function):
        return functions.dress(_around_coroutine(function, taps), function)
    return functions.dress(_around(function, taps), function)


_Wanted: TypeAlias = "list[tuple[Tap, list[Any]]]"


def _wanted(taps: list[Tap], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Wanted:
    """The taps that take this call, with what they hold of it.

    Not written in the wrappers: `dress` renames their locals, so none is shared.
    """
    return [(tap, held) for tap in taps if (held := tap.before(args, kwargs)) is not None]


def _returned(wanted: _Wanted, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, seconds: float) -> None:
    for tap, held in wanted:
        tap.after(args, kwargs, held, result, seconds)


def _raised(wanted: _Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for tap, held in wanted:
        tap.after(args, kwargs, held)


def _around(function: Any, taps: list[Tap]) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiling.torch_is is not None and compiling.torch_is():
            return function(*args, **kwargs)
        wanted = _wanted(taps, args, kwargs)
        if not wanted:
            held: list[Any] = [kwargs, args]
            del args, kwargs
            return function(*held.pop(), **held.pop())
        started = time.perf_counter()
        try:
            result = function(*args, **kwargs)
        except BaseException:
            _raised(wanted, args, kwargs)
            raise
        _returned(wanted, args, kwargs, result, time.perf_counter() - started)
        return result

    return wrapper


def _around_coroutine(function: Any, taps: list[Tap]) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        wanted = _wanted(taps, args, kwargs)
        started = time.perf_counter()
        try:
            result = await function(*args, **kwargs)
        except BaseException:
            _raised(wanted, args, kwargs)
            raise
        _returned(wanted, args, kwargs, result, time.perf_counter() - started)
        return result

    return wrapper


def _around_async_generator(function: Any, taps: list[Tap]) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        wanted = _wanted(taps, args, kwargs)
        body = function(*args, **kwargs)
        return _Followed(body, wanted, args, kwargs) if wanted else body

    return functions.relayed(made)


class _Followed:
    """An async generator that is followed to its end: its last item is what it returned.

    One that is closed before is like a call that raised.
    """

    def __init__(self, body: Any, wanted: _Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._body = body
        self._call = wanted, args, kwargs
        self._last: Any = values.MISSING
        self._started = time.perf_counter()

    # the step is made here, not in the coroutine: the event loop gets to know a generator as it makes its first one
    def __anext__(self) -> Awaitable[Any]:
        return self._stepped(self._body.__anext__())

    def asend(self, value: Any) -> Awaitable[Any]:
        return self._stepped(self._body.asend(value))

    def athrow(self, thrown: BaseException) -> Awaitable[Any]:
        return self._stepped(self._body.athrow(thrown))

    @uncounted
    async def _stepped(self, step: Awaitable[Any]) -> Any:
        try:
            self._last = item = await step
        except StopAsyncIteration:
            _returned(*self._call, self._last, time.perf_counter() - self._started)
            raise
        except BaseException:
            _raised(*self._call)
            raise
        return item
