"""The collector has no `Impl` class, and calls other actors: the third level."""

import ray


@ray.remote
class Collector:
    def __init__(self, generation, buffer):
        self.generation = generation
        self.buffer = buffer

    def collect(self, prompts):
        texts = ray.get(self.generation.generate.remote(prompts))
        return ray.get(self.buffer.add.remote(texts))
