"""The task: the prompt is a digit, the answer is the next digits, counting on from it (7 -> 8 9 0).

Small enough for a table of logits, yet with several tokens per answer, so that rewards are partial.
"""

from __future__ import annotations

import numpy as np

DIGITS = 10
ANSWER_LENGTH = 3
PAD = DIGITS
EOS = DIGITS + 1


def answer(prompt: int) -> list[int]:
    return [(prompt + 1 + place) % DIGITS for place in range(ANSWER_LENGTH)]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def new_logits() -> np.ndarray:
    """The untrained policy: every digit equally likely, for each prompt and each place of the answer."""
    return np.zeros((DIGITS, ANSWER_LENGTH, DIGITS))


def answer_logprobs(logits: np.ndarray, input_ids: np.ndarray) -> np.ndarray:
    """Log-probabilities of the tokens of `input_ids` [batch, 1 + answer]; 0 at the prompt."""
    prompts, answers = input_ids[:, 0], input_ids[:, 1:]
    table = log_softmax(logits)[prompts]
    picked = np.take_along_axis(table, answers[:, :, None], axis=2)[:, :, 0]
    return np.concatenate([np.zeros((len(prompts), 1)), picked], axis=1)
