"""Checkpoints on disk: written to `tmp_step_N`, renamed to `step_N` in the background once complete."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class CheckpointManager:
    def __init__(self, config: dict[str, Any]) -> None:
        self.checkpoint_dir = Path(config["checkpoint_dir"])
        self.save_optimizer = config.get("save_optimizer", True)
        self._pending: threading.Thread | None = None

    def init_tmp_checkpoint(self, step: int, training_info: Mapping[str, Any], run_config: Any = None) -> Path:
        path = self.checkpoint_dir / f"tmp_step_{step}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "training_info.json").write_text(json.dumps(dict(training_info)), encoding="utf-8")
        return path

    def finalize_checkpoint(self, checkpoint_path: str | os.PathLike[str]) -> None:
        path = Path(checkpoint_path)
        path.rename(path.with_name(path.name.removeprefix("tmp_")))

    def begin_finalization(
        self, checkpoint_path: str | os.PathLike[str], wait_fn: Callable[[], None] | None = None
    ) -> None:
        self.finalize_pending()

        def finalize() -> None:
            if wait_fn is not None:
                wait_fn()
            self.finalize_checkpoint(checkpoint_path)

        self._pending = threading.Thread(target=finalize, name="checkpoint-finalizer", daemon=True)
        self._pending.start()

    def finalize_pending(self) -> None:
        if self._pending is not None:
            self._pending.join()
            self._pending = None

    def shutdown(self) -> None:
        self.finalize_pending()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool:
        self.shutdown()
        return False

    def get_latest_checkpoint_path(self) -> str | None:
        paths = self.checkpoint_dir.glob("step_*")
        latest = max(paths, key=lambda path: int(path.name.removeprefix("step_")), default=None)
        return None if latest is None else str(latest)

    def load_training_info(self, checkpoint_path: str | os.PathLike[str] | None = None) -> dict[str, Any] | None:
        if checkpoint_path is None:
            return None
        return json.loads((Path(checkpoint_path) / "training_info.json").read_text(encoding="utf-8"))
