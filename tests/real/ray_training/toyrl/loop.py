"""The driver's side: functions that the map names, and what they call."""

import random

import ray

from toyrl.collector import Collector
from toyrl.generation import GenerationWorker
from toyrl.policy import PolicyWorker
from toyrl.replay_buffer import ReplayBuffer


class Loop:
    def __init__(self, seed=7):
        random.seed(seed)
        self.policies = [PolicyWorker.remote(seed + i) for i in range(2)]
        self.generation = GenerationWorker.remote()
        self.buffer = ReplayBuffer.remote(size=8)
        self.collector = Collector.remote(self.generation, self.buffer)

    def train(self, steps):
        results = [self.step(i) for i in range(steps)]
        return {
            "losses": results,
            "weights": ray.get([p.weights.remote() for p in self.policies]),
            "random": random.random(),
        }

    def step(self, number):
        prompts = [random.randint(0, 9) for _ in range(4)]
        ray.get(self.collector.collect.remote(prompts))
        batch = ray.get(self.buffer.sample.remote(1))[0]
        losses = ray.get([p.train.remote(batch, lr=0.01) for p in self.policies])
        ray.get(self.generation.update_weights.remote(losses[0]))
        return losses

    def pids(self):
        return ray.get([p.pid.remote() for p in self.policies])


def job(call):
    """One span whose map says `threads: true`."""
    return call()


def phase(name, call):
    """One span around one remote call, so that a test can tell whose child its spans are."""
    return call()
