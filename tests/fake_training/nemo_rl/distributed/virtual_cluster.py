"""The cluster that is not there: everything runs in this process."""

from __future__ import annotations

import os
from typing import Any

from nemo_rl import _pace

ray: Any = None
"""What stands for Ray. There is nothing to start without it, and the run goes on in this process either way."""


def init_ray(log_dir: str | None = None) -> None:
    _pace.work("ray_init")
    if ray is not None and not _attached():
        ray.init(resources={_tag(): 1})
        print(f"a cluster of one machine: {ray.cluster_resources()}")


def _attached() -> bool:
    """Whether there is a cluster to use: an operator's, or one that a run with the same GPUs has started."""
    try:
        ray.init(address="auto")
    except ConnectionError:
        usable = False
    else:
        resources = ray.cluster_resources()
        tags = [name for name in resources if name.startswith("nrl_tag_")]
        usable = not tags or _tag() in tags
    if not usable:
        ray.shutdown()
    return usable


def _tag() -> str:
    return "nrl_tag_" + "_".join(sorted(os.environ.get("CUDA_VISIBLE_DEVICES", "ALL").split(",")))


class RayVirtualCluster:
    def __init__(
        self,
        bundle_ct_per_node_list: list[int],
        use_gpus: bool = True,
        max_colocated_worker_groups: int = 1,
        num_gpus_per_node: int = 8,
        name: str = "",
        placement_group_strategy: str = "SPREAD",
        port_range_low: int | None = None,
        port_range_high: int | None = None,
        segment_size: int | None = None,
        node_resource_constraints: list[dict[str, float]] | None = None,
    ) -> None:
        self.name = name
        self._bundles = bundle_ct_per_node_list

    def world_size(self) -> int:
        return sum(self._bundles)

    def node_count(self) -> int:
        return len(self._bundles)

    def shutdown(self) -> bool:
        return True
