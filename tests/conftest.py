"""Lets the tests import the modules beside them."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoinstr import notices

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def every_notice_anew() -> None:
    """What an earlier test has made autoinstr say, it says again."""
    notices.forget()


@pytest.fixture(autouse=True)
def loud_exporters() -> Iterator[None]:
    """A guarded exporter keeps OpenTelemetry's loggers quiet for its whole process; the next test starts anew."""
    yield
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith("opentelemetry") and isinstance(logger, logging.Logger):
            logger.filters = [f for f in logger.filters if not type(f).__module__.startswith("autoinstr")]
