"""The generation worker: an async actor whose calls overlap."""

import asyncio

import ray


class GenerationWorkerImpl:
    def __init__(self):
        self.calls = 0

    async def generate(self, prompts, delay=0.0):
        self.calls += 1
        await asyncio.sleep(delay)
        return [await self.complete(p) for p in prompts]

    async def how_often(self):
        return self.calls

    async def complete(self, prompt):
        await asyncio.sleep(0)
        return prompt * 2

    async def generate_stream(self, prompts):
        for prompt in prompts:
            yield await self.complete(prompt)

    async def fail(self, text):
        await asyncio.sleep(0)
        raise ValueError(text)

    async def stream_and_fail(self, text):
        yield text
        raise ValueError(text)

    def update_weights(self, weight):
        return weight


@ray.remote
class GenerationWorker(GenerationWorkerImpl):
    pass
