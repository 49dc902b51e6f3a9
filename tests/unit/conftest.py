"""Fixtures that several unit tests share."""

from collections.abc import Iterator

import pytest
from made_modules import make as make
from opentelemetry import context
from toy_packages import write as write

from autoinstr.spans import opening


@pytest.fixture(autouse=True)
def fresh_context() -> Iterator[None]:
    """No span is current as a test begins, and none is open that the one before has left so."""
    token = context.attach(context.Context())
    yield
    context.detach(token)
    opening.leave_at_exit()
