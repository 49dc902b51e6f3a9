"""`python drive.py SCENARIO [ADDRESS]`: one scenario on Ray; what it found is printed as one line of JSON."""

import json
import os
import re
import signal
import sys
import tempfile
import time

import ray

HERE = os.path.dirname(os.path.abspath(__file__))


def train():
    from toyrl.loop import Loop

    return Loop().train(3)


def ends():
    """One actor is killed by Ray, one by the system, the others live on as the driver simply ends."""
    from toyrl.loop import Loop

    loop = Loop()
    result = loop.train(2)
    pids = loop.pids()
    ray.kill(loop.policies[0])
    os.kill(pids[1], signal.SIGKILL)
    return {**result, "pids": pids}


def kinds():
    from toyrl import kinds as k
    from toyrl.generation import GenerationWorker
    from toyrl.loop import job, phase

    flags = tempfile.mkdtemp()
    generation = GenerationWorker.remote()
    threaded, grouped, streaming = k.Threaded.remote(), k.Grouped.remote(), k.Streaming.remote()

    def overlap(actor, *arguments, **more):
        return [phase(f"call {i}", lambda: actor.remote(*arguments, **more)) for i in range(3)]

    found = {
        "async": phase("async", lambda: ray.get(generation.generate.remote([1]))),
        "overlapping": ray.get(overlap(generation.generate, [1], delay=0.05)),
        "async generator": phase(
            "async generator", lambda: [ray.get(r) for r in generation.generate_stream.remote([1, 2])]
        ),
        "threaded": ray.get(overlap(threaded.work, "ab")),
        "concurrency group": phase("concurrency group", lambda: ray.get(grouped.read.remote("abc"))),
        "other group": phase(
            "other group", lambda: ray.get(grouped.compute.options(concurrency_group="io").remote("a"))
        ),
        "generator": phase("generator", lambda: [ray.get(r) for r in streaming.stream.remote(["a", "bc"])]),
        "static": phase("static", lambda: ray.get(streaming.fixed.remote("a"))),
        "task": phase("task", lambda: ray.get(k.score_task.remote("a"))),
        "task with a reference": phase("task with a reference", lambda: ray.get(k.score_task.remote(ray.put("abcd")))),
        "task with keywords": phase("task with keywords", lambda: ray.get(k.score_task.remote(text="a", times=2))),
        "task without arguments": phase("task without arguments", lambda: ray.get(k.score_nothing.remote())),
        "generator task": phase("generator task", lambda: [ray.get(r) for r in k.score_stream.remote(["a", "bc"])]),
        "retried task": phase("retried task", lambda: ray.get(k.score_flaky.remote("a", f"{flags}/task"))),
        "nested task": phase("nested task", lambda: ray.get(k.score_nested.remote("ab"))),
        "arguments": phase("arguments", lambda: ray.get(streaming.seen.remote(1, a=2))),
        "no arguments": phase("no arguments", lambda: ray.get(streaming.seen.remote())),
    }
    background = k.Background.remote(threaded)
    job(lambda: ray.get(background.start.remote(["a", "bc"])))
    found["bare threads"] = ray.get(background.join.remote())
    restarting = phase("restarting init", lambda: k.Restarting.remote())
    found["restarted"] = phase("restarted", lambda: ray.get(restarting.work.remote("abc", f"{flags}/actor")))
    try:
        phase("failing", lambda: ray.get(streaming.fail.remote("no")))
    except ValueError as error:
        found["error"] = [
            type(error).__name__,
            isinstance(error, ray.exceptions.RayTaskError),
            type(error.cause).__name__,
        ]
        found["error names"] = "fail" in str(error) and "ValueError: no" in str(error)
    before = ray.get(generation.how_often.remote())
    sleeping = phase("cancelled", lambda: generation.generate.remote([1], delay=3600))
    while ray.get(generation.how_often.remote()) == before:
        time.sleep(0.05)
    ray.cancel(sleeping)
    try:
        ray.get(sleeping)
    except ray.exceptions.TaskCancelledError:
        found["cancelled"] = True
    fails = (k.fail_task, streaming.fail_unseen, generation.fail)
    found["errors"] = [phase("error", lambda f=f: text_of_error(lambda: ray.get(f.remote("no")))) for f in fails]
    # without us, Ray cuts one line too many at the top of a generator's
    found["errors of generators"] = [
        phase("error", lambda a=a: text_of_error(lambda: [ray.get(r) for r in a.stream_and_fail.remote("no")], -1))
        for a in (streaming, generation)
    ]
    found["blamed"] = phase("blamed", lambda: ray.get([k.blamed.remote(level) for level in (1, 2)]))
    try:
        streaming.fail.remote()
    except TypeError as error:
        found["wrong arguments"] = str(error)
    found["tasks' signature"] = [str(p) for p in k.score_task.remote.__wrapped__.__annotations__]
    return found


def text_of_error(call, first_line=0):
    """What a user reads of it, without what differs from run to run."""
    try:
        call()
    except Exception as error:
        text = re.sub(r"pid=\d+|actor_id=\w+|0x\w+|line \d+", "...", str(error))
        return "\n".join(text.splitlines()[first_line:])


def environment():
    """What an actor with a `runtime_env` of its own sees, and whether we are in it."""
    from toyrl.kinds import Streaming
    from toyrl.loop import phase

    @ray.remote
    class Looking:
        def look(self, name):
            return os.environ.get(name), "autoinstr.patch.patcher" in sys.modules, sys.path.count(os.getcwd())

    env = {"PYTHONPATH": "/nowhere/a", "AUTOINSTR_USER_ID": "theirs"}
    options = {"env_vars": env}
    mine = Looking.options(runtime_env=options).remote()
    plain = Looking.remote()
    streaming = Streaming.options(runtime_env=options).remote()
    phase("static", lambda: ray.get(streaming.fixed.remote("a")))
    names = ("PYTHONPATH", "AUTOINSTR_USER_ID", "AUTOINSTR_RUN_ID", "THEIRS")
    return {
        "own": {name: ray.get(mine.look.remote(name)) for name in names},
        "plain": {name: ray.get(plain.look.remote(name)) for name in names},
        "unchanged": env == {"PYTHONPATH": "/nowhere/a", "AUTOINSTR_USER_ID": "theirs"}
        and options == {"env_vars": env},
    }


def without():
    """Actors in an environment without autoinstr: it is hidden from them."""
    from toyrl.kinds import score_nested, score_stream
    from toyrl.loop import Loop, phase

    loop = Loop()
    found = loop.train(2)
    found["stream"] = phase("s", lambda: [ray.get(r) for r in score_stream.remote(["a"])])
    found["nested"] = phase("n", lambda: ray.get(score_nested.remote("a")))
    until_told_of("Collector", "GenerationWorker", "PolicyWorker", "ReplayBuffer")
    return found


def until_told_of(*classes):
    """Until autoinstr has said of each of these that it is without it: it looks from time to time."""
    notices = sys.modules.get("autoinstr.notices")
    until = time.monotonic() + 300
    while notices and time.monotonic() < until:
        said = " ".join(notices._said)
        if all(f"the Ray actor {name} is without" in said for name in classes):
            return
        time.sleep(0.1)


def latency():
    """Seconds per call of an empty actor method and of a task, one after the other, the best of several rounds."""
    from toyrl.kinds import Streaming, score_task
    from toyrl.loop import phase

    actor = Streaming.remote()
    many = 300

    def best(call):
        ray.get(call())
        rounds = []
        for _ in range(8):
            start = time.perf_counter()
            for _ in range(many):
                ray.get(call())
            rounds.append((time.perf_counter() - start) / many)
        return min(rounds)

    return phase(
        "latency",
        lambda: {"method": best(lambda: actor.seen.remote()), "task": best(lambda: score_task.remote("a"))},
    )


def start(options):
    """Ray gives its own processes 15 and 30 seconds to start, which may be too short on a busy machine."""
    for _ in range(3):
        try:
            return ray.init(**options)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            ray.shutdown()
    raise TimeoutError("Ray does not start")


def main(scenario, address=None):
    options = {"address": address} if address else {"num_cpus": 4, "include_dashboard": False}
    if "RUNTIME_ENV" in os.environ:
        options["runtime_env"] = json.loads(os.environ["RUNTIME_ENV"])
    if "TRACING_HOOK" in os.environ:
        options["_tracing_startup_hook"] = os.environ["TRACING_HOOK"]
    start(options)
    found = globals()[scenario]()
    print("RESULT " + json.dumps(found), flush=True)


main(*sys.argv[1:])
