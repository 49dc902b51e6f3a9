from __future__ import annotations

from typing import Any


def configure_generation_config(
    config: dict[str, Any],
    tokenizer: Any,
    is_eval: bool = False,
    has_refit_draft_weights: bool = False,
    trains_mtp: bool = False,
) -> dict[str, Any]:
    """What the generation engine must know of the tokenizer."""
    config["_pad_token_id"] = tokenizer.pad_token_id
    if config["stop_token_ids"] is None:
        config["stop_token_ids"] = [tokenizer.eos_token_id]
    return config
