"""Why an exporter's batches do not arrive, in the words of whoever knows: its address, the network, its own log.

OpenTelemetry's exporters log each try. The guards keep them quiet and say it once.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from autoinstr.exporting.standing_by import PROBING, hand_over
from autoinstr.patience import within

_PROBE_SECONDS = 0.5
_RESOLVE_SECONDS = 1.0
"""How long the end may wait to learn the address of a name."""
_REASON_CHARACTERS = 200


def wrong_address(exporter: Any) -> str | None:
    """Why nothing can ever be sent by this exporter: OTLP over HTTP to an address without `http://`. Else None."""
    endpoint = getattr(exporter, "_endpoint", None)
    if ".proto.http." not in type(exporter).__module__ or not isinstance(endpoint, str):
        return None
    try:
        scheme = urlsplit(endpoint).scheme
    except ValueError as error:
        return f"it is no address: {error}"
    if scheme in ("http", "https"):
        return None
    return "OTLP over HTTP needs http:// or https:// in front (OTEL_EXPORTER_OTLP_ENDPOINT)"


def why_unreachable(endpoint: str) -> str | None:
    """Why no TCP connection to the endpoint's host and port can be opened now. Unknown forms count as reachable.

    A resolver that does not answer takes many seconds: it is asked in another thread, and waited for in short.
    """
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        # bytes: a text would be encoded as IDNA, whose import here might meet one that a signal has interrupted
        host: Any = parts.hostname.encode("ascii") if parts.hostname else None
    except ValueError:  # of a malformed address; UnicodeError is one
        return None
    if host is None or port is None:
        return None
    found: list[str | None] = []

    def probe() -> None:
        try:
            with socket.create_connection((host, port), timeout=_PROBE_SECONDS):
                found.append(None)
        except socket.gaierror as error:
            found.append(f"its name can't be resolved ({error.strerror})")
        except OSError:
            found.append("nobody answers there")

    done = threading.Event()
    if not hand_over((probe, done), PROBING):
        probe()
    elif not within(_RESOLVE_SECONDS, done.wait) and not found:
        return f"its name is not resolved within {_RESOLVE_SECONDS:g} s"
    return found[0] if found else None


class _Quiet(logging.Filter):
    """Lets nothing of a logger through, and keeps the last words of each thread: the guard says them, once."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[int, str] = {}
        """By thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            if record.levelno >= logging.WARNING:
                self.hear(reason_in(record.getMessage()))
        except Exception:  # a message that does not fit its arguments
            pass
        return False

    def hear(self, reason: str) -> None:
        if reason:
            self.heard[threading.get_ident()] = reason


QUIET = _Quiet()
_CODE = re.compile(r"code: (?:StatusCode\.)?(\w+)(?:, (?:error details|reason): (.*))?")
_TRANSIENT = re.compile(r"Transient error (?:StatusCode\.)?(.*?) encountered while export.*?(?:Error details: (.*))?$")
_NO_REASON = ("due to timeout, max retries", "Shutdown in progress", "already shutdown")


def reason_in(message: str) -> str:
    """Why a batch was not taken, out of what OpenTelemetry's exporters log; empty where the message does not say."""
    text = " ".join(message.split())
    if any(words in text for words in _NO_REASON):
        return ""
    match = _CODE.search(text) or _TRANSIENT.search(text)
    if match is not None:
        text = " ".join(part for part in match.groups() if part and part != "None")
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 3] + "..."


def last_words() -> str:
    """What an exporter of this thread has logged of its failure since this was asked before."""
    return QUIET.heard.pop(threading.get_ident(), "")


def quieten(names: Sequence[str]) -> None:
    """Put the filter on loggers, once each; no level and no handler changes."""
    for name in names:
        logger = logging.getLogger(name)
        if QUIET not in logger.filters:
            logger.addFilter(QUIET)
