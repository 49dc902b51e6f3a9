"""Every kind of call that Ray has, each with a function inside that the map names."""

import asyncio
import os
import threading
import time
import warnings

import ray


def score(text):
    return len(text)


@ray.remote
def score_task(text, times=1):
    return score(text * times)


@ray.remote
def score_nothing():
    return score("")


@ray.remote
def score_stream(texts):
    for text in texts:
        yield score(text)


@ray.remote(max_retries=2, retry_exceptions=True)
def score_flaky(text, flag):
    score(text)
    if not os.path.exists(flag):
        open(flag, "w").close()
        raise RuntimeError("once")
    return score(text)


@ray.remote
def fail_task(text):
    raise ValueError(text)


@ray.remote
def blamed(stacklevel):
    """The file that a warning names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("of the caller", stacklevel=stacklevel)
    return os.path.basename(caught[0].filename)


@ray.remote
def score_nested(text):
    return ray.get(score_task.remote(text))


@ray.remote(max_concurrency=4)
class Threaded:
    def work(self, text, seconds=0.05):
        time.sleep(seconds)
        return score(text)


@ray.remote(concurrency_groups={"io": 2, "compute": 2})
class Grouped:
    @ray.method(concurrency_group="io")
    def read(self, text):
        return score(text)

    @ray.method(concurrency_group="compute")
    def compute(self, text):
        return score(text)


@ray.remote
class Streaming:
    def stream(self, texts):
        for text in texts:
            yield score(text)

    def fail(self, text):
        raise ValueError(text)

    def fail_unseen(self, text):
        raise ValueError(text)

    def stream_and_fail(self, text):
        yield text
        raise ValueError(text)

    def seen(self, *args, **kwargs):
        return [list(args), kwargs]

    @staticmethod
    def fixed(text):
        return score(text)


@ray.remote
class Background:
    """Collects as NeMo RL's collector does: a bare thread for each batch, with an event loop of its own."""

    def __init__(self, scorer):
        self.scorer = scorer
        self.threads = []

    def start(self, texts):
        self.threads = [threading.Thread(target=lambda t=t: asyncio.run(self.batch(t))) for t in texts]
        for thread in self.threads:
            thread.start()

    async def batch(self, text):
        await asyncio.sleep(0)
        return score(text) + await self.scorer.work.remote(text, seconds=0)

    def join(self):
        for thread in self.threads:
            thread.join()
        return len(self.threads)


@ray.remote(max_restarts=1, max_task_retries=1)
class Restarting:
    def __init__(self):
        score("restarted")

    def work(self, text, flag):
        if not os.path.exists(flag):
            open(flag, "w").close()
            os._exit(1)
        return score(text)
