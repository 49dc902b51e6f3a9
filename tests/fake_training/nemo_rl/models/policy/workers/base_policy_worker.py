"""The trained weights: a table of logits, and gradient descent on it. In NeMo RL a Ray actor with a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nemo_rl import _pace
from nemo_rl._toy_task import answer_logprobs, log_softmax, new_logits


class AbstractPolicyWorker:
    """What the backends share. Here that is all of it: each only has methods of its own, as in NeMo RL."""

    def _load(self, config: dict[str, Any], weights_path: str | None) -> None:
        _pace.work("policy_init")
        self.cfg = config
        self.lr = config["optimizer"]["kwargs"]["lr"]
        self.logits = new_logits()
        if weights_path is not None:
            self.load_checkpoint(weights_path)
        self.reference_logits = new_logits()

    @contextmanager
    def use_reference_model(self) -> Iterator[None]:
        trained, self.logits = self.logits, self.reference_logits
        try:
            yield
        finally:
            self.logits = trained

    def get_reference_policy_logprobs(self, *, data: Any, micro_batch_size: int | None = None) -> np.ndarray:
        with self.use_reference_model():
            return self.get_logprobs(data=data, micro_batch_size=micro_batch_size)  # type: ignore[attr-defined]

    def _logprobs(self, data: Any) -> np.ndarray:
        _pace.work("logprobs")
        return answer_logprobs(self.logits, data["input_ids"])

    def _step(self, data: Any, loss_fn: Any, eval_mode: bool) -> dict[str, Any]:
        """One gradient step on the whole batch, unless `eval_mode`."""
        _pace.work("training")
        input_ids = data["input_ids"]
        valid_tokens = float(np.sum(data["token_mask"] * data["sample_mask"][:, None]))
        logprobs = answer_logprobs(self.logits, input_ids)
        loss, by_logprob, metrics = loss_fn.evaluate(logprobs, data, valid_tokens)
        gradient = self._by_logits(input_ids, by_logprob[:, 1:])
        if not eval_mode:
            self.logits = self.logits - self.lr * gradient
        metrics.update(lr=self.lr, global_valid_toks=valid_tokens, global_valid_seqs=float(np.sum(data["sample_mask"])))
        return {"global_loss": loss, "grad_norm": float(np.linalg.norm(gradient)), "all_mb_metrics": metrics}

    def _by_logits(self, input_ids: np.ndarray, by_logprob: np.ndarray) -> np.ndarray:
        """Chain rule through the log-softmax: one-hot of the token taken, less the probabilities."""
        prompts, answers = input_ids[:, 0], input_ids[:, 1:]
        by_score = -np.exp(log_softmax(self.logits))[prompts]
        rows, places = np.indices(answers.shape)
        by_score[rows, places, answers] += 1
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, prompts, by_score * by_logprob[:, :, None])
        return gradient

    def _save(self, weights_path: str) -> None:
        _pace.work("checkpoint")
        os.makedirs(weights_path, exist_ok=True)
        np.savez(os.path.join(weights_path, "weights.npz"), logits=self.logits)

    def load_checkpoint(self, weights_path: str, optimizer_path: str | None = None) -> None:
        self.logits = np.load(os.path.join(weights_path, "weights.npz"))["logits"]
