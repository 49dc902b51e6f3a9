"""Every operation of the transfer queue's client."""

from __future__ import annotations

import pytest
from whole_trees import choices, only, spans_of

TREE = """
rl.data_plane.register (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='register' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.put (data_plane) [overhead] rl.data_plane.bytes=16 rl.data_plane.keys=2 rl.data_plane.op='put' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.get (data_plane) [overhead] rl.data_plane.bytes=8 rl.data_plane.keys=1 rl.data_plane.op='get' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.claim_meta (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='claim_meta' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.get_data (data_plane) [overhead] rl.data_plane.bytes=16 rl.data_plane.keys=2 rl.data_plane.op='get_data' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.check_consumption_status (data_plane) [overhead] rl.data_plane.op='check_consumption_status' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.clear (data_plane) [overhead] rl.data_plane.keys=2 rl.data_plane.op='clear' rl.data_plane.partition='train' rl.data_plane.status='ok'
rl.data_plane.close (data_plane) [overhead] rl.data_plane.op='close' rl.data_plane.status='ok'
"""


def run() -> None:
    import numpy as np
    from nemo_rl.data_plane import build_data_plane_client

    client = build_data_plane_client({"enabled": True})
    client.register_partition("train", fields=["x"], num_samples=2, consumer_tasks=["train"])
    client.put_samples(["a", "b"], "train", fields={"x": np.array([1.0, 2.0])})
    client.get_samples(["a"], "train", select_fields=["x"])
    meta = client.claim_meta("train", "train", ["x"], batch_size=2)
    client.get_data(meta)
    client.check_consumption_status("train", ["train"])
    client.clear_samples(["a", "b"], "train")
    client.close()


@pytest.mark.parametrize("groups", choices(TREE))
def test_data_plane(groups: str) -> None:
    assert spans_of(run, groups) == only(groups, TREE)
