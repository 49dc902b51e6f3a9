"""The environment, read once into one frozen `Settings`.

`AUTOINSTR_<KEY>` is ours; `NEMO_RL_OTEL_<KEY>` and `NEMO_LENS_<KEY>` are read where ours is unset, so that
a NeMo RL user's variables keep working. Reading never raises: what can't be understood is listed in
`Settings.mistakes` and the default is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

_PREFIXES = ("AUTOINSTR_", "NEMO_RL_OTEL_", "NEMO_LENS_")
_TESTS = "AUTOINSTR_TEST_"
_RUN_ID_BYTES = 128
"""What a run's id may be long: it names a folder, and stands in every line of the journal."""
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

LOGS_SWITCH = "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED"
"""OpenTelemetry's own variable for its bridge from `logging`."""
JOURNAL_MODES = ("auto", "on", "off")


class Settings(NamedTuple):  # every process of a run pays for this class: a dataclass takes many times longer to make
    """What the environment asks for. Paths are absolute; `mistakes` are ready-made lines for the user."""

    enabled: bool
    span_groups: str
    span_maps: tuple[Path, ...]
    builtin_maps: str
    ranks: str
    run_id: str
    user_id: str | None
    run_dir: Path
    journal: bool
    strict: bool
    capture_content: bool
    hang_after: float | Literal["auto"] | None
    """Seconds after which an open step has its stacks written into the journal; None: nobody watches."""
    logs: bool
    """Whether Python's log records go where OpenTelemetry's logs go, and into the journal."""
    metrics: bool
    """Whether metrics are wanted, should there be an exporter for them."""
    switches: frozenset[str]
    """The switches of maps that are on: names of `environment_variables.SWITCHES`."""
    mistakes: tuple[str, ...]

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `environ` (the process's own by default)."""
        env = os.environ if environ is None else environ
        reader = _Reader(env)
        sdk_is_off = env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        mode = reader.choice("JOURNAL", JOURNAL_MODES, "auto")
        return cls(
            enabled=not sdk_is_off and reader.boolean("ENABLED", True),
            span_groups=reader.text("SPAN_GROUPS") or "default",
            span_maps=tuple(
                _absolute(part) for part in (reader.text("SPAN_MAPS") or "").split(os.pathsep) if part.strip()
            ),
            builtin_maps=reader.text("BUILTIN_MAPS") or "all",
            ranks=reader.text("RANKS") or "all",
            run_id=_run_id(reader, env),
            user_id=reader.text("USER_ID"),
            run_dir=_absolute(reader.text("RUN_DIR") or "autoinstr-runs"),
            journal=mode == "on" or (mode == "auto" and not _exports_traces(env)),
            strict=reader.boolean("STRICT", False),
            capture_content=reader.boolean("CAPTURE_CONTENT", False),
            hang_after=reader.seconds_or_auto("HANG_AFTER"),
            logs=_wants_logs(reader, env),
            metrics=_wants_metrics(reader),
            switches=_switches(reader, env),
            mistakes=(*reader.mistakes, *_unknown_names(env)),
        )

    def hand_down(self, told: bool = True) -> None:
        """Put into `os.environ` what makes every child join this run, and do as this process does.

        NeMo RL writes its own telemetry's settings into the environment of its workers, by the names that are read
        where ours is unset: telemetry that is off there must not switch this off too. A wrong run id that was given
        stays there until it has been `told`.
        """
        os.environ.setdefault("AUTOINSTR_ENABLED", "true")
        os.environ.setdefault("AUTOINSTR_SPAN_GROUPS", self.span_groups)
        os.environ.setdefault("AUTOINSTR_LOGS_ENABLED", str(self.logs).lower())
        os.environ.setdefault("AUTOINSTR_METRICS_ENABLED", str(self.metrics).lower())
        if told or not any(os.environ.get(f"{prefix}RUN_ID", "").strip() for prefix in _PREFIXES):
            os.environ["AUTOINSTR_RUN_ID"] = self.run_id
            for prefix in _PREFIXES[1:]:
                os.environ.setdefault(f"{prefix}RUN_ID", self.run_id)
        os.environ["AUTOINSTR_RUN_DIR"] = str(self.run_dir)


def _run_id(reader: _Reader, env: Mapping[str, str]) -> str:
    """The run's id: set, else SLURM's job id, else made. It names a folder, and is typed after `autoinstr report`."""
    name, run_id = reader.find("RUN_ID")
    if run_id is None:
        name, run_id = "SLURM_JOB_ID", env.get("SLURM_JOB_ID", "").strip()
    if not run_id:
        return os.urandom(6).hex()
    # not printable are control characters, and bytes that are no UTF-8, which no record could hold
    plain = "".join("_" if c in "/\\" or not c.isprintable() else c for c in run_id)
    if plain != run_id or plain == "..":
        plain = plain.replace("..", "__")
    if plain[0] in ".-~":  # hidden, an option of a command, or somebody's home
        plain = "_" + plain[1:]
    if len(plain.encode()) > _RUN_ID_BYTES:
        import hashlib

        cut = plain.encode()[: _RUN_ID_BYTES - 9].decode(errors="ignore")
        plain = f"{cut}-{hashlib.sha256(run_id.encode(errors='replace')).hexdigest()[:8]}"
    if plain != run_id:
        shown = repr(run_id if len(run_id) <= 80 else run_id[:77] + "...")
        reader.mistakes.append(f"{name}={shown} can't name a folder and be typed as a word; {plain!r} is used")
    return plain


def _absolute(text: str) -> Path:
    path = Path(text)
    try:
        path = path.expanduser()
        return path.absolute()
    except (OSError, RuntimeError):  # the working directory has been deleted; nobody has that home
        return path


def _unknown_names(env: Mapping[str, str]) -> list[str]:
    """A line for every `AUTOINSTR_` variable that is none: misspelt, it would be silently without effect."""
    from autoinstr import environment_variables

    known = [name for name in vars(environment_variables) if name.startswith("AUTOINSTR_")]
    unknown = sorted(n for n in env if n.startswith("AUTOINSTR_") and n not in known and not n.startswith(_TESTS))
    if not unknown:
        return []
    from autoinstr.maps.words import did_you_mean

    # compared without what all have in common, which would make any two of them near
    ours = _PREFIXES[0]
    keys = [name.removeprefix(ours) for name in known]
    meant = [did_you_mean(name.removeprefix(ours), keys).replace("'", f"'{ours}", 1) for name in unknown]
    return [f"there is no variable {name}{near}; it is ignored" for name, near in zip(unknown, meant, strict=True)]


def _wants_logs(reader: _Reader, env: Mapping[str, str]) -> bool:
    """Off by default: where ours says nothing, OpenTelemetry's own switch counts, and then an exporter of logs."""
    theirs = env.get(LOGS_SWITCH, "").strip().lower()
    if theirs in _TRUE | _FALSE:
        default = theirs in _TRUE
    else:
        default = env.get("OTEL_LOGS_EXPORTER", "").strip().lower() not in ("", "none")
    return reader.boolean("LOGS_ENABLED", default)


def wants_metrics(env: Mapping[str, str]) -> bool:
    """Whether metrics are wanted, should there be an exporter for them."""
    return _wants_metrics(_Reader(env))


def _wants_metrics(reader: _Reader) -> bool:
    return reader.boolean("METRICS_ENABLED", True)


def _switches(reader: _Reader, env: Mapping[str, str]) -> frozenset[str]:
    from autoinstr.environment_variables import SWITCHES

    return frozenset(name for name in SWITCHES if reader.boolean(name.removeprefix(_PREFIXES[0]), False))


def _exports_traces(env: Mapping[str, str]) -> bool:
    return any(
        env.get(name, "").strip()
        for name in (
            "OTEL_TRACES_EXPORTER",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        )
    ) or bool(env.get("OTEL_CONFIG_FILE", "").strip())


class _Reader:
    """Looks a key up under each prefix and remembers what it could not understand."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.mistakes: list[str] = []

    def find(self, key: str) -> tuple[str, str | None]:
        for prefix in _PREFIXES:
            value = self._env.get(prefix + key, "").strip()
            if value:
                return prefix + key, value
        return _PREFIXES[0] + key, None

    def text(self, key: str) -> str | None:
        return self.find(key)[1]

    def boolean(self, key: str, default: bool) -> bool:
        name, value = self.find(key)
        if value is None:
            return default
        if value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        self.mistakes.append(f"{name}={value!r} is neither true nor false; {str(default).lower()} is used")
        return default

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        name, value = self.find(key)
        if value is None:
            return default
        if value.lower() in choices:
            return value.lower()
        self.mistakes.append(f"{name}={value!r} is none of {', '.join(choices)}; {default} is used")
        return default

    def seconds_or_auto(self, key: str) -> float | Literal["auto"] | None:
        name, value = self.find(key)
        if value is None or value.lower() in _FALSE:
            return None
        if value.lower() == "auto":
            return "auto"
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if 0 < seconds < float("inf"):
            return seconds
        self.mistakes.append(f"{name}={value!r} is neither a number of seconds nor auto; there is no hang watch")
        return None
