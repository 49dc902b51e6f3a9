"""A checkpoint, as every loop writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_checkpoint(
    checkpointer: Any, policy: Any, dataloader_state: dict, step: int, save_state: Any, master_config: Any
) -> None:
    """Writes `tmp_step_<step>`, and lets the checkpointer rename it in the background."""
    state = save_state if isinstance(save_state, dict) else vars(save_state)
    path = checkpointer.init_tmp_checkpoint(step, state, master_config)
    policy.save_checkpoint(
        weights_path=os.path.join(path, "policy", "weights"),
        tokenizer_path=os.path.join(path, "policy", "tokenizer"),
        checkpointing_cfg=master_config.checkpointing,
    )
    Path(path, "train_dataloader.json").write_text(json.dumps(dataloader_state), encoding="utf-8")
    checkpointer.begin_finalization(path, wait_fn=policy.finalize_async_save)
