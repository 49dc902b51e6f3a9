"""Which rank this process is, and whether `AUTOINSTR_RANKS` wants it traced at all."""

from __future__ import annotations

from collections.abc import Mapping


def _integer(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        try:
            return int(env[name])
        except (KeyError, ValueError):
            continue
    return None


def rank(env: Mapping[str, str]) -> int | None:
    """The global rank, or None in a process that has none (a driver, a singleton)."""
    return _integer(env, "RANK")


def world_size(env: Mapping[str, str]) -> int | None:
    return _integer(env, "WORLD_SIZE")


def local_rank(env: Mapping[str, str]) -> int | None:
    return _integer(env, "LOCAL_RANK")


def is_selected(spec: str, env: Mapping[str, str]) -> tuple[bool, str | None]:
    """Whether a process with this environment is traced, and what is wrong with the spec, if anything.

    `spec` is `all`, `first`, `last`, `first_per_node`, ranks by comma, or `sample:FRACTION`. A process
    without a rank always counts. `sample` hashes the rank: the same ranks in every run.
    """
    wanted = _parsed(spec)
    if wanted is None:
        return True, (
            f"AUTOINSTR_RANKS={spec!r} is none of all, first, last, first_per_node, 0,8,16 or sample:0.1; all is used"
        )
    mine = rank(env)
    if mine is None or wanted == "all":
        return True, None
    if wanted == "last":
        size = world_size(env)
        return size is None or mine == size - 1, None
    if wanted == "first_per_node":
        local = local_rank(env)
        return local is None or local == 0, None
    if isinstance(wanted, float):
        import hashlib

        digest = hashlib.sha256(str(mine).encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < wanted, None
    assert isinstance(wanted, frozenset)
    return mine in wanted, None


def _parsed(spec: str) -> str | float | frozenset[int] | None:
    """A word that needs the environment, the fraction of a sample, or ranks; None for what is none of these."""
    if spec in ("all", "last", "first_per_node"):
        return spec
    if spec == "first":
        return frozenset({0})
    if spec.startswith("sample:"):
        try:
            fraction = float(spec.partition(":")[2])
        except ValueError:
            fraction = -1.0
        return fraction if 0 <= fraction <= 1 else None
    words = [word.strip() for word in spec.split(",") if word.strip()]
    if words and all(word.isascii() and word.isdigit() for word in words):
        return frozenset(int(word) for word in words)
    return None
