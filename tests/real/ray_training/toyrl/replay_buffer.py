"""The replay buffer. Its worker never imports this module's users."""

import ray


class ReplayBufferImpl:
    def __init__(self, size):
        self.size = size
        self.items = []

    def add(self, trajectory):
        self.items.append(trajectory)
        return len(self.items)

    def sample(self, count):
        taken, self.items = self.items[:count], self.items[count:]
        return taken


@ray.remote
class ReplayBuffer(ReplayBufferImpl):
    pass
