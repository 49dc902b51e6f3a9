"""Reading a config and its command-line overrides, with plain dicts in place of omegaconf."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any


class OverridesError(Exception):
    """An override that cannot be applied."""


def register_omegaconf_resolvers() -> None:
    """NeMo RL registers `${mul:...}` and the like here; JSON has no such thing."""


def load_config(config_path: str | Path) -> dict[str, Any]:
    return json.loads(Path(config_path).read_text(encoding="utf-8"))


def parse_hydra_overrides(cfg: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """A copy of `cfg` with each `a.b=value` applied; `+a.b=value` adds a key that is not there yet.

    Raises OverridesError for a key that does not exist, as hydra does, so that a typo is not ignored.
    """
    result = copy.deepcopy(cfg)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise OverridesError(f"{override!r}: expected key=value")
        may_add = key.startswith("+")
        *parents, last = key.lstrip("+").split(".")
        section = result
        for name in parents:
            section = section.setdefault(name, {}) if may_add else section.get(name)
            if not isinstance(section, dict):
                raise OverridesError(f"{override!r}: {name!r} is not a section of the config")
        if last not in section and not may_add:
            raise OverridesError(f"{override!r}: no key {last!r} here, only {', '.join(sorted(section))}")
        section[last] = _value(text)
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
