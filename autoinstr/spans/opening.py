"""How one span is opened and closed around user code.

A `SpanPlan` is all that was decided at patch time about one entry; `open` starts its span, makes it current
and returns an `Opened`; `close` ends it and restores what was current before. None of this raises into user
code: a failure of ours is said once and costs the span.

Closing must be right when it comes in another order, another thread's context, or never: an `Opened` knows
the context it replaced, and a span that lost its end (a `start` without `stop`, a block never left) is ended
when the span that holds it ends.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import get_ident
from time import time_ns
from typing import Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, propagation

from autoinstr import __version__
from autoinstr.interruptions import is_the_programs
from autoinstr.maps.model import Scope
from autoinstr.notices import describe, say
from autoinstr.spans import GROUP_ATTRIBUTE, quick

SCOPE_NAME = "autoinstr"
BUCKET_ATTRIBUTE = "rl.bucket"
LOST_END_ATTRIBUTE = "autoinstr.lost_end"
"""On a span that was ended by somebody else than its own end: `parent`, `begin` (it began again) or `exit`."""

_SPAN_KEY: Any = getattr(propagation, "_SPAN_KEY", None)
_put: Callable[[Any, Any, Any], None] = dict.__setitem__  # a Context is closed to all others once it is attached
_SCOPE_KEY = context_api.create_key("autoinstr-scope")
OPENED_KEY = context_api.create_key("autoinstr-opened")
"""The innermost `Opened` of a context."""

theirs: Callable[[Any, frozenset[str]], Any] | None = None
"""Set by `joining` once another instrumentation opens spans: gives its current span, if ours would be the same."""

_runtime = getattr(context_api, "_RUNTIME_CONTEXT", None)
# the API's own functions only pass on to these
attach: Callable[[Context], Any] = getattr(_runtime, "attach", context_api.attach)
get_current: Callable[[], Context] = getattr(_runtime, "get_current", context_api.get_current)
_reset = getattr(_runtime, "detach", None)


def detach(token: Any) -> bool:
    """Undo `attach`. False, and silent, where the token belongs to another thread's or task's context.

    The API's own `detach` logs an error with a traceback there, into the user's log.
    """
    if _reset is None:
        context_api.detach(token)
        return True
    try:
        _reset(token)
    except Exception:
        return False
    return True


def is_ours(span: Any) -> bool:
    """Whether a map's entry opened the span; also where it became another instrumentation's since."""
    scope = span.instrumentation_scope
    return scope is not None and (scope.name == SCOPE_NAME or GROUP_ATTRIBUTE in (scope.attributes or ()))


def nearest_open(names: Collection[str]) -> Opened | None:
    """The innermost open span of one of these names, in this process, around what runs now."""
    above: Any = get_current().get(OPENED_KEY)
    while above is not None:
        if above.span is not None and any(name in above.names for name in names):
            return above  # type: ignore[no-any-return]
        above = above.outer
    return None


def set_on(opened: Opened, span: Any, attributes: Mapping[str, Any], keep: bool = False) -> None:
    """Set attributes of ours on an open span. What another instrumentation has set there stays; with `keep`, all."""
    there: Collection[str] = opened.shared.theirs if opened.shared is not None else ()
    if keep:
        there = span.attributes or ()
    lacking = {key: value for key, value in attributes.items() if key not in there} if there else attributes
    if lacking:
        span.set_attributes(lacking)


def carries_into_threads(context: Context) -> bool:
    """Whether a thread that is started in this context takes it along."""
    scope: Any = context.get(_SCOPE_KEY)
    return scope is not None and bool(scope.threads)


class ActiveScope:
    """The scopes that hold in a context, merged: the innermost bucket, and every group that counts as another.

    `threads` says that threads which are started in it take it along.
    """

    __slots__ = ("bucket", "groups", "threads")

    def __init__(self, bucket: str | None, groups: Mapping[str, str], threads: bool = False) -> None:
        self.bucket = bucket
        self.groups = groups
        self.threads = threads

    def within(self, outer: ActiveScope | None) -> ActiveScope:
        if outer is None:
            return self
        return ActiveScope(self.bucket or outer.bucket, {**outer.groups, **self.groups}, self.threads or outer.threads)


def scope_of(context: Context) -> ActiveScope | None:
    """The scopes that hold in a context."""
    scope = context.get(_SCOPE_KEY)
    return scope if isinstance(scope, ActiveScope) else None


def within_scope(context: Context, scope: ActiveScope) -> Context:
    """`context` with the scopes of another process, for what is done here on its behalf."""
    return context_api.set_value(_SCOPE_KEY, scope, context)


class Tracers:
    """One tracer per span group, so that the group is on the instrumentation scope and costs no span attribute."""

    def __init__(self, provider: Callable[[], trace.TracerProvider] | None = None) -> None:
        self._provider = provider or trace.get_tracer_provider
        self._tracers: dict[str, Tracer] = {}
        self._asking: set[int] = set()

    def of(self, group: str) -> Tracer | None:
        """The tracer of a group; None for what interrupts this very thread while it asks for one.

        The provider holds a lock meanwhile that is not reentrant: a traced finalizer or signal handler that ran just
        then would wait for its own thread forever.
        """
        tracer = self._tracers.get(group)
        if tracer is not None:
            return tracer
        thread = get_ident()
        if thread in self._asking:
            return None
        collects = gc.isenabled()
        self._asking.add(thread)
        gc.disable()  # so that no finalizer runs just then, and none loses its span
        try:
            tracer = self._provider().get_tracer(SCOPE_NAME, __version__, attributes={GROUP_ATTRIBUTE: group})
            self._tracers[group] = tracer
        finally:
            if collects:
                gc.enable()
            self._asking.discard(thread)
        return tracer


_NO_NAMES: frozenset[str] = frozenset()


class Opened:
    """A span that is open: what to restore, and under which opened span it lies."""

    __slots__ = (
        "context",
        "holds_loose",
        "loose",
        "names",
        "outer",
        "pair",
        "previous",
        "rest",
        "resting",
        "seen",
        "shared",
        "span",
        "stranded",
        "token",
    )

    def __init__(self, span: Span, context: Context, previous: Context, outer: Opened | None) -> None:
        self.span: Span | None = span
        self.context = context
        self.previous = previous
        self.outer = outer
        self.names: frozenset[str] = _NO_NAMES
        """What the span is called, by us and by code that opens it itself."""
        self.token: Any = None
        self.loose = False
        self.pair = False
        self.holds_loose = False
        self.stranded = False
        """Ended out of order or elsewhere: its context may still be current, and is not to be built on."""
        self.rest: Rest | None = None
        """What a span has that the next block may go on with."""
        self.resting: Resting | None = None
        """The spans directly inside that wait for their next block."""
        self.seen: tuple[Any, ...] | None = None
        """Mark of the exception that a span directly inside has recorded and let pass."""
        self.shared: Any = None
        """The span as another instrumentation holds it, whose span it is as well (`joining`)."""

    def leave(self) -> Context:
        """Make current again what was so before the span, which stays open. Returns the span's context."""
        detach(self.token)
        self.token = None
        return self.context


class Rest:
    """A span of many blocks (`coalesce` in a map): whose it is, what its blocks have in common, how many it had.

    Its block is over once `since` is set (nanoseconds since the epoch). Then the span is current nowhere, and ends as
    of that time with whatever ends it: another span of the same thread or task beside it, the end of the one that
    holds it, the process's exit. Processors that have `on_rest` and `on_resume` are told meanwhile.
    """

    __slots__ = ("blocks", "match", "place", "plan", "since", "told", "told_ns")

    def __init__(self, plan: SpanPlan, match: tuple[Any, ...]) -> None:
        self.plan = plan
        self.match = match
        self.blocks = 1
        self.since: int | None = None
        self.place: tuple[Resting, Flow] | None = None
        """Where it is found when the next block begins."""
        self.told = False
        """Whether the processors know it to be at rest."""
        self.told_ns = 0
        """The end of the block after which they were told so last."""


Flow = tuple[int, int, str]
Resting = dict[Flow, Opened]
_TELL_AGAIN_NS = 10**9
"""Processors are told of a span's rests no more often: a loop may poll every few milliseconds."""
_MOST_RESTING = 1000
"""In one span; each thread and task has one at most."""
_resting_roots: Resting = {}


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = next(_threads)


_threads = itertools.count()
_thread = _Thread()


def flow() -> Flow:
    """What tells this thread, and this task of it, from others; those that are over too, whose ids are used again."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            name = getattr(task, "get_name", None)  # a number of its own, unless the user gave it a name
            return (_thread.number, id(task), str(name()) if name is not None else "")
    return (_thread.number, 0, "")


_loose: dict[int, Opened] = {}
"""Spans whose end is not sure to come (blocks entered by hand, begin/end pairs), by id of their `Opened`.

No lock guards it: a finalizer or a signal handler may end a span while this very thread ends another. Each
step is one operation of a dict, and so whole.
"""


class SpanPlan:
    """All that is fixed about the spans of one entry.

    `bucket` is what the span gets outside any scope; `fixed_bucket` says that no scope changes it.
    `selects` answers whether a group is on, for scopes that make a group count as another.
    """

    __slots__ = (
        "_maker",
        "_tracer",
        "_tracers",
        "base_attributes",
        "bucket",
        "counts",
        "fixed_bucket",
        "group",
        "name",
        "names",
        "off",
        "once_per_instance",
        "scope",
        "selected",
        "selects",
    )

    def __init__(
        self,
        name: str,
        group: str,
        tracers: Tracers,
        *,
        bucket: str | None = None,
        fixed_bucket: bool = False,
        scope: Scope | None = None,
        selects: Callable[[str], bool] = lambda group: True,
        selected: bool = True,
        once_per_instance: bool = False,
        threads: bool = False,
        also: Iterable[str] = (),
        counts: str | None = None,
    ) -> None:
        self.name = name
        self.names = frozenset((name, *also))
        self.group = group
        self.bucket = bucket
        self.fixed_bucket = fixed_bucket
        self.scope: ActiveScope | None = None
        if scope is not None:
            self.scope = ActiveScope(scope.bucket, dict(scope.groups), threads)
        elif threads:
            self.scope = ActiveScope(None, {}, threads)
        self.selects = selects
        self.selected = selected
        self.off = False
        self.counts = counts
        """The attribute with the number of blocks that one span had."""
        # an override that calls its base's method is one call, and gets one span
        self.once_per_instance = context_api.create_key(f"autoinstr-{name}") if once_per_instance else None
        self.base_attributes = {BUCKET_ATTRIBUTE: bucket} if bucket is not None else {}
        self._tracers = tracers
        self._tracer: Tracer | None = None
        self._maker: quick.QuickMaker | None = None

    def _first(self) -> Tracer | None:
        """The tracer, asked for with the first span: the provider may be set later than the patch."""
        self._tracer = tracer = self._tracers.of(self.group)
        if tracer is None:
            return None
        self._maker = quick.maker(tracer, self.name) if _SPAN_KEY is not None else None
        return tracer

    def open(
        self,
        attributes: Mapping[str, Any] | None = None,
        start_ns: int | None = None,
        *,
        loose: bool = False,
        pair: bool = False,
        instance: object = None,
        match: tuple[Any, ...] | None = None,
    ) -> Opened | None:
        """Start the span and make it current. None when it is off here, or when that failed (said once).

        With `match`, the span of the block before goes on instead, if nothing else was opened since, and its own
        `match` is the same.

        Where the span is off but has a scope, the scope holds for what is opened below, and there is no span.

        `loose`: its end may never come. `pair`: loose, and its end is no end of what was begun after it.
        """
        if self.off:
            return None
        try:
            previous = get_current()
            outer: Any = previous.get(OPENED_KEY)
            if outer is not None and outer.stranded:
                while outer is not None and outer.stranded:
                    previous, outer = outer.previous, outer.outer
                attach(previous)
            if self.once_per_instance is not None and previous.get(self.once_per_instance) == id(instance):
                return None
            tracer = self._tracer or self._first()
            maker = self._maker
            base = self.base_attributes
            scope: Any = previous.get(_SCOPE_KEY)
            shown = self.selected
            if scope is not None:
                group = scope.groups.get(self.group)
                if group is not None:
                    shown = self.selects(group)
                    tracer, base, maker = self._tracers.of(group), {}, None
                elif scope.bucket is not None and base and not self.fixed_bucket:
                    base = {BUCKET_ATTRIBUTE: scope.bucket}
            span: Span | None
            opened: Opened | None = None
            others = False
            if shown:
                resting = _resting_roots if outer is None else outer.resting
                if resting:
                    opened = self._at_rest(resting, match)
            if opened is not None:
                span = opened.span
            elif shown:
                base = {**attributes, **base} if attributes else base.copy()
                span = self._theirs(previous, outer, base) if theirs is not None else None
                others = span is not None  # and ends when they end it
                if span is None and maker is not None:
                    span = maker.start(previous.get(_SPAN_KEY), base, start_ns, previous)
                if span is None:
                    if tracer is None:
                        return None
                    span = tracer.start_span(self.name, previous, attributes=base, start_time=start_ns)
            elif self.scope is not None:  # what it says of the spans below holds all the same
                span = trace.INVALID_SPAN
            else:
                return None
            context = Context(previous)
            if opened is None:
                opened = Opened(span, context, previous, outer)  # type: ignore[arg-type]
                if match is not None and shown and not others:
                    opened.rest = Rest(self, match)
            else:
                opened.context, opened.previous = context, previous
            if shown:
                opened.names = self.names
                if _SPAN_KEY is not None:
                    _put(context, _SPAN_KEY, span)
                else:
                    context = opened.context = Context(trace.set_span_in_context(span, context))  # type: ignore[arg-type]
            _put(context, OPENED_KEY, opened)
            if self.scope is not None:
                _put(context, _SCOPE_KEY, self.scope.within(scope))
            if self.once_per_instance is not None:
                _put(context, self.once_per_instance, id(instance))
            opened.token = attach(context)
            if loose or pair:
                opened.loose, opened.pair = True, pair
                above = opened.outer
                while above is not None and not above.holds_loose:
                    above.holds_loose = True
                    above = above.outer
                _loose[id(opened)] = opened
            return opened
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"span {self.name} could not be opened: {describe(error)}", once=f"open {self.name}")
            return None

    def _at_rest(self, resting: Resting, match: tuple[Any, ...] | None) -> Opened | None:
        """The span that this thread or task has at rest here, if a block with `match` is one of its; else it ends."""
        opened = resting.pop(flow(), None)
        if opened is None or opened.rest is None or opened.span is None:
            return None
        rest = opened.rest
        if match is None or rest.plan is not self or rest.match != match:
            close(opened)
            return None
        rest.blocks += 1
        rest.since = None
        if opened.shared is not None and opened.shared.is_over:
            opened.shared = None  # they may open one for each block
        if rest.told:
            rest.told = False
            _tell("on_resume", opened.span)
        if not opened.loose:
            _loose.pop(id(opened), None)
        return opened

    def _theirs(self, context: Context, outer: Opened | None, attributes: Mapping[str, Any]) -> Any:
        """The span that another instrumentation has open for this very block, with our attributes; or None."""
        above = trace.get_current_span(context)
        if theirs is None or (outer is not None and above is outer.span):
            return None
        span = theirs(above, self.names)
        if span is not None:
            span.set_attributes(attributes)
        return span


def close(
    opened: Opened,
    exception: BaseException | None = None,
    attributes: Mapping[str, Any] | None = None,
    lost_end: str | None = None,
) -> None:
    """End the span, with the exception that left it, and make current what was so before. Never raises."""
    span = opened.span
    if span is None:  # ended already, by its parent's end or by a second stop
        return
    rest = opened.rest
    if rest is not None:
        if rest.since is not None:
            _end_at_rest(opened, rest, span)
            return
        if exception is None and lost_end is None and _laid_to_rest(opened, rest, span, attributes):
            return
    opened.span = None
    try:
        if opened.loose:
            _loose.pop(id(opened), None)
        if opened.holds_loose and not opened.pair:
            _end_lost(opened)
        if opened.resting is not None:
            _end_resting(opened)
        if rest is None or not opened.stranded:  # where it is, it was restored when it could not be laid to rest
            _restore(opened)
        opened.token = None  # it keeps what was current before, and so on without end
        opened.context = opened.previous  # its own context holds it: a cycle for the collector
        if attributes:
            set_on(opened, span, attributes)
        if lost_end is not None:
            span.set_attribute(LOST_END_ATTRIBUTE, lost_end)
        if rest is not None and rest.plan.counts is not None:
            span.set_attribute(rest.plan.counts, rest.blocks)
        if exception is not None:
            _record(opened, span, exception)
        _end(opened, span)
    except Exception as error:
        if is_the_programs(error):
            raise
        say(f"a span could not be ended: {describe(error)}", once="close")


def _end(opened: Opened, span: Span, end_time: int | None = None) -> None:
    shared, opened.shared = opened.shared, None
    if shared is None:
        span.end(end_time)
    else:
        shared.end_ours(end_time)


def _laid_to_rest(opened: Opened, rest: Rest, span: Span, attributes: Mapping[str, Any] | None) -> bool:
    """Whether the span's block is over and the span waits for the next one. Never raises."""
    holder = opened.outer
    try:
        if holder is not None and holder.span is None:
            return False
        since = time_ns()
        if opened.holds_loose:
            _end_lost(opened)
        _restore(opened)
        if opened.stranded:  # left out of order: whatever is current may still build on it
            return False
        if attributes:
            set_on(opened, span, attributes)
        tell = since - rest.told_ns >= _TELL_AGAIN_NS
        if opened.shared is not None and not opened.shared.is_over:  # theirs too, and they are still in it
            tell = False
        if tell and rest.plan.counts is not None:
            span.set_attribute(rest.plan.counts, rest.blocks)
        opened.token = None
        _loose[id(opened)] = opened
        rest.since = since
        if holder is None:
            resting = _resting_roots
        else:
            resting = holder.resting = {} if holder.resting is None else holder.resting
        mine = flow()
        before = resting.pop(mine, None)
        if before is None and len(resting) >= _MOST_RESTING:
            before = resting.pop(next(iter(resting)), None)
        resting[mine] = opened
        rest.place = (resting, mine)
        if before is not None and before is not opened:
            close(before)
        if tell:
            rest.told, rest.told_ns = True, since
            _tell("on_rest", span, since)
    except Exception as error:
        if is_the_programs(error):
            raise
        say(f"a span could not be laid to rest: {describe(error)}", once="rest")
        return rest.since is not None
    return True


def _tell(what: str, span: Any, *about: Any) -> None:
    """Call `what` of the span's processors that have it. Never raises."""
    try:
        for processor in getattr(getattr(span, "_span_processor", None), "_span_processors", ()):
            hear = getattr(processor, what, None)
            if hear is not None:
                hear(span, *about)
    except Exception as error:
        if is_the_programs(error):
            raise
        say(f"a processor could not be told of a span at rest: {describe(error)}", once="tell of rest")


def _end_at_rest(opened: Opened, rest: Rest, span: Span) -> None:
    """End a span at rest, as of the end of its last block."""
    opened.span = None
    try:
        _loose.pop(id(opened), None)
        if rest.place is not None:
            resting, whose = rest.place
            rest.place = None
            if resting.get(whose) is opened:
                del resting[whose]
        if opened.resting is not None:
            _end_resting(opened)
        opened.context = opened.previous
        if rest.plan.counts is not None:
            span.set_attribute(rest.plan.counts, rest.blocks)
        _end(opened, span, rest.since)
    except Exception as error:
        if is_the_programs(error):
            raise
        say(f"a span could not be ended: {describe(error)}", once="close")


def _end_resting(outer: Opened) -> None:
    """End the spans at rest directly inside `outer`, which ends now."""
    resting, outer.resting = outer.resting, None
    for opened in list((resting or {}).values()):
        if opened.rest is not None and opened.rest.since is not None:
            close(opened)


def end_at_rest(plans: Iterable[SpanPlan] | None = None) -> None:
    """End the spans of these plans, or of all, that wait for their next block: none will come."""
    ending = None if plans is None else set(map(id, plans))
    for opened in list(_loose.values()):
        rest = opened.rest
        if rest is not None and rest.since is not None and (ending is None or id(rest.plan) in ending):
            close(opened)


def leave_at_exit() -> None:
    """End what is still open because its end never came, at the process's normal exit."""
    while _loose:
        try:
            _, opened = _loose.popitem()
        except KeyError:  # another thread took the last one
            return
        close(opened, lost_end="exit")


def innermost(stack: list[Opened]) -> Opened | None:
    """Take from `stack` the span that ends now: the innermost one of this thread and task, else the latest."""
    try:
        above: Any = get_current().get(OPENED_KEY) if len(stack) > 1 else None
        while above is not None and above not in stack:
            above = above.outer
        if above is None:
            return stack.pop()
        stack.remove(above)
        return above  # type: ignore[no-any-return]
    except (IndexError, ValueError):  # nothing is open, or another thread took that one
        return None


def _end_lost(outer: Opened) -> None:
    """End the loose spans inside `outer` that were begun in this same thread and task: their end is lost.

    A thread or task that was started inside `outer` may outlive it, and its spans with it.
    """
    inside = [other for other in list(_loose.values()) if _lies_in(other, outer)]
    for other in reversed(inside):
        current = get_current()
        if detach(other.token):  # only possible in the thread's or task's context that it was begun in
            attach(current)
            close(other, lost_end="parent")


def _lies_in(inner: Opened, outer: Opened) -> bool:
    above = inner.outer
    while above is not None:
        if above is outer:
            return True
        above = above.outer
    return False


def _restore(opened: Opened) -> None:
    """Make the context before `opened` current, unless something newer is current and still open."""
    context, above = opened.context, opened.outer
    moved = False
    while above is not None and above.stranded:
        # it has ended meanwhile; cut out, or spans that overlap without end would keep each other forever
        opened.previous, opened.outer = above.previous, above.outer
        above, moved = above.outer, True
    current = get_current()
    if current is context:
        left = detach(opened.token)
        opened.stranded = opened.loose and not left  # still current where it was opened, in another thread or task
        if moved or not left:
            attach(opened.previous)
        return
    newer: Any = current.get(OPENED_KEY)
    while newer is not None and newer.stranded:
        current, newer, moved = newer.previous, newer.outer, True
    if newer is opened and not opened.pair:
        attach(opened.previous)
        return
    opened.stranded = opened.loose
    if newer is opened and current is context:
        attach(opened.previous)
    elif moved:
        attach(current)


def _record(opened: Opened, span: Span, exception: BaseException) -> None:
    if not span.is_recording():
        if opened.outer is not None:  # a scope without a span hands on what a span inside has recorded
            opened.outer.seen = opened.seen or opened.outer.seen
        return
    mark = mark_of(exception)
    try:
        if opened.seen != mark:
            span.record_exception(exception)
    except BaseException as error:  # an exception's own __str__ may raise anything
        if is_the_programs(error):
            raise
        span.add_event("exception", {"exception.type": type(exception).__qualname__})
    if not isinstance(exception, GeneratorExit) and not (
        isinstance(exception, SystemExit) and exception.code in (None, 0)
    ):
        span.set_status(Status(StatusCode.ERROR, describe(exception)))
    if opened.outer is not None:
        opened.outer.seen = mark


def mark_of(exception: BaseException) -> tuple[Any, ...]:
    """What tells this raise from another one: the object, and the place of its innermost frame.

    The object's id alone may be reused by the next exception.
    """
    innermost = exception.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None:
        return (id(exception), type(exception))
    return (id(exception), type(exception), innermost.tb_frame.f_code, innermost.tb_lasti)
