"""Fixtures that several unit tests share."""

from collections.abc import Iterator

import pytest
from made_modules import make as make
from opentelemetry import context
from toy_packages import write as write


@pytest.fixture(autouse=True)
def fresh_context() -> Iterator[None]:
    """No span is current as a test begins, whatever the one before has left open."""
    token = context.attach(context.Context())
    yield
    context.detach(token)
