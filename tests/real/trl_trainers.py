"""TRL's trainers on a model of two layers and a tokenizer of words: an optimizer step in a second, on a CPU, offline.

    python trl_trainers.py TRAINER FOLDER

trains two steps of `TRAINER` in `FOLDER` and prints what it logged, and where the random streams stand afterwards.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(180))]


def model(folder: Path) -> str:
    """The folder of a model and its tokenizer, made where it is not there: TRL loads the reference from it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    if not (folder / "config.json").is_file():
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        special: dict[str, Any] = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        special["model_input_names"] = ["input_ids", "attention_mask"]  # TRL 0.24 hands the model all there are
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def trainer(name: str, folder: Path, **more: Any) -> Any:
    """A trainer of TRL, for two optimizer steps of two micro-batches; it evaluates and saves after the second."""
    import trl
    from datasets import Dataset

    n = range(8)
    prompts = {"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in n]}
    pairs = {"prompt": [f"w{i}" for i in n], "chosen": [f" w{i + 2} w{i + 3}" for i in n], "rejected": [" w9"] * 8}
    rated = {"prompt": [f"w{i}" for i in n], "completion": [f" w{i + 2}" for i in n], "label": [i % 2 == 0 for i in n]}
    online = {"max_completion_length": 6}
    scored = {**online, "num_generations": 2, "beta": 0.1}
    data, options, extra = {
        "GRPO": (prompts, scored, {"reward_funcs": distinct_words}),
        "RLOO": (prompts, scored, {"reward_funcs": distinct_words}),
        "Distillation": (prompts, online, {"teacher_model": model(folder / "model")}),
        "SFT": ({"text": prompts["prompt"]}, {}, {}),
        "DPO": (pairs, {}, {}),
        "Reward": (pairs, {}, {}),
        "KTO": (rated, {}, {}),
    }[name]
    dataset = Dataset.from_dict(data)
    common = {
        "output_dir": str(folder / "out"), "report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True,
        "seed": 7, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 2,
        "max_steps": 2, "learning_rate": 0.01, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2,
        "save_strategy": "steps", "save_steps": 2,
    }  # fmt: skip
    config = getattr(trl, f"{name}Config")(**{**common, **options, **more})
    return getattr(trl, f"{name}Trainer")(
        model=model(folder / "model"),
        args=config,
        train_dataset=dataset,
        eval_dataset=dataset.select(range(2)),
        **extra,
    )


def distinct_words(completions: list[str], **others: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


def main() -> None:
    import random

    import numpy
    import torch

    trained = trainer(sys.argv[1], Path(sys.argv[2]))
    trained.train()
    timed = ("_runtime", "_per_second", "step_time")
    logs = [{k: v for k, v in log.items() if not k.endswith(timed)} for log in trained.state.log_history]
    print("LOGS", json.dumps(logs))
    print("RANDOM", random.random(), numpy.random.random(), torch.rand(1).item())
    weights = sum(parameter.double().sum().item() for parameter in trained.model.parameters())
    print("WEIGHTS", repr(weights))


if __name__ == "__main__":
    main()
