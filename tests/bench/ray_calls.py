"""What tracing adds to a call of a Ray actor's method and to a task: times, to be read and not to be tested.

    python tests/bench/ray_calls.py

in an environment with `ray`. The machine should have no other work.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "real"))

from test_ray import drive


def measured(traced: bool) -> dict[str, float]:
    """Seconds per call, by kind."""
    with tempfile.TemporaryDirectory() as cwd:
        return dict(drive("latency", Path(cwd), traced=traced).result)


if __name__ == "__main__":
    rounds = [(measured(traced=False), measured(traced=True)) for _ in range(2)]
    for kind in ("method", "task"):
        without, with_us = (min(pair[i][kind] for pair in rounds) for i in (0, 1))
        print(f"{kind}: {without * 1e6:.0f} µs without, {with_us * 1e6:.0f} µs with, ratio {with_us / without:.3f}")
