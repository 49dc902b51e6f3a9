"""The hang watch's time in a traced process that imports this: it stands still until there is a file `late`.

Then it is an hour later. What a busy machine holds up for a while does not hang, and what is open as the file is made
does. Each look of the watch from then on adds a byte to the file `looks`. Both are in the working directory.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from autoinstr import hang


def _monotonic() -> float:
    return 3600.0 * os.path.exists("late")


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
    if os.path.exists("late"):
        with open("looks", "a") as looks:
            looks.write(".")


watch: Any = hang
watch.time = SimpleNamespace(monotonic=_monotonic, sleep=_sleep)
