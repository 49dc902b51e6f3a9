"""What counts as a scalar: numbers of Python, numpy, and torch on the CPU. Nothing else is touched."""

from __future__ import annotations

import sys
from typing import Any, Final

_MAX_INT: Final = 2**53
"""Beyond it an integer is told as a float: a counter whose sum of integers leaves 64 bits can't be sent, and with it
nothing else of the process."""


class ElsewhereError(ValueError):
    """The value is on a device, and asking for it would make training wait."""


def scalar(value: Any) -> int | float | None:
    """`value` as a plain number, or None where it is none. NaN and infinity are numbers.

    A tensor is only read when it is a plain one with no dimension on the CPU: reading one on a GPU waits for
    the device, and reading a distributed one waits for the other ranks.

    Raises:
        ElsewhereError: for a tensor on a device.
    """
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return value if -_MAX_INT <= value <= _MAX_INT else float(value)
    if kind is bool or kind is str or value is None:
        return None
    if isinstance(value, float):  # numpy's float64 is one
        return float(value)
    if isinstance(value, int):  # enum members
        return None if isinstance(value, bool) else scalar(int(value))
    module = kind.__module__
    if module == "numpy":
        return _of_numpy(value)
    if module.partition(".")[0] == "torch":
        return _of_torch(kind, value)
    return None


def _of_numpy(value: Any) -> int | float | None:
    if getattr(value, "ndim", None) != 0 or value.dtype.kind not in "iuf":
        return None
    return scalar(value.item())


def _of_torch(kind: type, value: Any) -> int | float | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.ndim != 0:
        return None
    if kind not in (torch.Tensor, torch.nn.Parameter) or value.dtype is torch.bool or value.is_complex():
        return None
    if value.device.type != "cpu":
        raise ElsewhereError(f"a tensor on {value.device.type}")
    return scalar(value.item())
