"""The trained policy: an `Impl` class, and an empty subclass that Ray decorates."""

import os
import random

import ray


class PolicyWorkerImpl:
    def __init__(self, seed):
        random.seed(seed)
        self.weight = 1.0

    def train(self, batch, *, lr):
        loss = sum(self._forward(batch)) / len(batch)
        self.weight -= lr * loss
        return loss

    def _forward(self, batch):
        return [x * self.weight + random.random() for x in batch]

    def weights(self):
        return self.weight

    def pid(self):
        return os.getpid()


@ray.remote
class PolicyWorker(PolicyWorkerImpl):
    pass
