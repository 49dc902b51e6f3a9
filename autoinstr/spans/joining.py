"""One span where two would be: code that is instrumented itself opens a span for a block that a map names too.

The two are one block where one is opened directly inside the other and bears its name, or a name that the map's
entry gives as `also`. The other instrumentation's span then is the one that is seen: its name, its scope, its
attributes. Where ours was opened first, it becomes theirs, and they are handed it in place of one of their own;
where theirs is open already, ours lends it the attributes that it lacks. Either way ends once.

Nothing of theirs is given up for it: only the first span of theirs inside one of ours can be the same block, and only
in the thread and task of ours. One of another kind, or with a start of its own, is another.

This stands on the SDK's `Tracer.start_span`, through which every instrumentation opens its spans. Nothing of it
raises into user code.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Span, SpanContext

from autoinstr.interruptions import is_the_programs
from autoinstr.notices import describe, say
from autoinstr.spans import GROUP_ATTRIBUTE, opening
from autoinstr.spans.opening import Opened


class SharedSpan(Span):
    """A span that two instrumentations have in common, as one of them holds it; the last one that ends it does."""

    def __init__(self, span: Any, opened: Opened | None) -> None:
        self._span = span
        self._opened = opened
        self.is_over = False
        self.theirs: set[str] = set()
        """The attributes that the other holder has set."""
        self._is_theirs_alone = False
        self._end_time: int | None = None

    def get_span_context(self) -> SpanContext:
        return self._span.get_span_context()  # type: ignore[no-any-return]

    def is_recording(self) -> bool:
        return not self.is_over and bool(self._span.is_recording())

    def end(self, end_time: int | None = None) -> None:
        """Its other holder ends it, where that is still to come."""
        if self.is_over:
            return
        self.is_over, self._end_time = True, end_time
        if self._is_theirs_alone:
            self._span.end(end_time)

    def end_ours(self, end_time: int | None) -> None:
        """End it, as of the time that the other holder has given; or leave it to them, if they have not ended it."""
        if self.is_over:
            self._span.end(end_time if self._end_time is None else self._end_time)
        else:
            self._is_theirs_alone = True

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.theirs.update(attributes)
        self._span.set_attributes(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.theirs.add(key)
        self._span.set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self._span.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        self._span.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        self._span.update_name(name)

    def set_status(self, status: Any, description: str | None = None) -> None:
        self._span.set_status(status, description)

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        self._span.record_exception(exception, attributes, timestamp, escaped)
        if self._opened is not None:
            self._opened.seen = opening.mark_of(exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._span, name)  # what an SDK span can be asked beside the API


class LentSpan(SharedSpan):
    """Another instrumentation's span, as we hold it: we add what it lacks, and leave the rest to its owner."""

    def __init__(self, span: Any) -> None:
        super().__init__(span, None)
        self._added: dict[str, Any] = {}

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        there = self._span.attributes or {}
        added = self._added
        # what we have added may change, unless its owner has set it since
        lacking = {k: v for k, v in attributes.items() if k not in there or (k in added and added[k] == there[k])}
        if lacking and self._span.is_recording():  # its owner may have ended it before ours is over
            self._span.set_attributes(lacking)
            added.update(lacking)

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Its owner sees the same exception."""

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        """Its owner sees the same exception."""


_scopes: dict[tuple[Any, Any], InstrumentationScope] = {}


def _scope_of_theirs(theirs: Any, ours: Any) -> InstrumentationScope:
    """The scope of their tracer, with our group on it, by which reports know what the span is."""
    key = (theirs, ours)
    found = _scopes.get(key)
    if found is None:
        attributes = {**(theirs.attributes or {}), **((ours.attributes or {}) if ours is not None else {})}
        found = InstrumentationScope(theirs.name, theirs.version, theirs.schema_url, attributes)
        _scopes[key] = found
    return found


def _share_ours(
    scope: InstrumentationScope,
    name: str,
    context: Any,
    kind: Any = trace.SpanKind.INTERNAL,
    attributes: Any = None,
    links: Any = None,
    start_time: int | None = None,
    *others: Any,
    **more: Any,
) -> SharedSpan | None:
    """Our innermost open span, if the one that a tracer of `scope` is asked for is the same; it becomes theirs."""
    current = opening.get_current() if context is None else context
    opened: Any = current.get(opening.OPENED_KEY)
    if kind is not trace.SpanKind.INTERNAL or start_time is not None:
        return None
    if opened is None or name not in opened.names or opened.shared is not None:
        return None
    span: Any = trace.get_current_span(current)
    if span is not opened.span or isinstance(span, SharedSpan):
        return None
    if not span.is_recording() or not _is_here(opened):
        return None
    if span.name != name:
        span.update_name(name)
    if GROUP_ATTRIBUTE in (span.instrumentation_scope.attributes or {}):
        span._instrumentation_scope = _scope_of_theirs(scope, span.instrumentation_scope)
    for link in links or ():
        span.add_link(link.context, link.attributes)
    shared = opened.shared = SharedSpan(span, opened)
    if attributes:
        shared.set_attributes(attributes)
    return shared


def _is_here(opened: Opened) -> bool:
    """Whether a span of ours was opened in this thread and task: its token is good in no other.

    That of a coroutine or generator has none while its body runs, which may be anywhere.
    """
    if opened.token is None:
        return True
    current = opening.get_current()
    if not opening.detach(opened.token):
        return False
    opened.token = opening.attach(current)
    return True


def _lend_theirs(above: Any, names: frozenset[str]) -> LentSpan | None:
    """The span of another instrumentation that is current, if ours would be the same."""
    if getattr(above, "name", None) not in names or isinstance(above, SharedSpan) or not above.is_recording():
        return None
    return LentSpan(above)


_original: Any = None
_installed: Any = None
_users = 0


def install() -> None:
    """Look at every span that others open. Counted: each call needs its `remove`."""
    global _installed, _original, _users
    _users += 1
    if _users > 1:
        return
    original = sdk.Tracer.start_span

    @functools.wraps(original)
    def start_span(self: Any, name: str, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            scope = getattr(self, "_instrumentation_scope", None)
            if _users and scope is not None and scope.name != opening.SCOPE_NAME:
                opening.theirs = _lend_theirs  # from now on one of theirs may be the current one
                shared = _share_ours(scope, name, context, *args, **kwargs)
                if shared is not None:
                    return shared
        except Exception as error:
            if is_the_programs(error):
                raise
            say(f"the span {name} may be there twice: {describe(error)}", once=f"join {name}")
        return original(self, name, context, *args, **kwargs)

    _original, _installed = original, start_span
    sdk.Tracer.start_span = start_span  # type: ignore[method-assign]


def remove() -> None:
    """Undo `install`, where nobody has wrapped it since; else it does nothing more."""
    global _installed, _original, _users
    if not _users:
        return
    _users -= 1
    if _users:
        return
    opening.theirs = None
    if sdk.Tracer.start_span is _installed:
        sdk.Tracer.start_span = _original  # type: ignore[method-assign]
    _original = _installed = None
