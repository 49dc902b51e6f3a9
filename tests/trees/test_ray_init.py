"""Which cluster `init_ray` has found, or whether it has started one: told from its calls of Ray."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import test_sft
from whole_trees import only, spans_of


def stand_for_ray(resources: dict[str, int] | None) -> types.ModuleType:
    """A `ray` for a machine on which a cluster with these resources runs; None: there is none."""
    running = [] if resources is None else [resources]
    ray = types.ModuleType("ray")

    def init(address: str | None = None, *, resources: dict[str, int] | None = None) -> None:
        if address is None:
            running.append({"CPU": 2, **(resources or {})})
        elif not running:
            raise ConnectionError(address)

    def cluster_resources() -> dict[str, int]:
        return running[-1]

    ray.init, ray.cluster_resources, ray.shutdown = init, cluster_resources, lambda: None  # type: ignore[attr-defined]
    return ray


@pytest.mark.parametrize(
    ("resources", "source"),
    [
        (None, "started_local"),
        ({"CPU": 64}, "attached_external"),
        ({"CPU": 64, "nrl_tag_0_1": 1}, "reused_local"),
        ({"CPU": 64, "nrl_tag_2_3": 1}, "started_local"),
    ],
    ids=["no cluster", "an operator's", "one of the same GPUs", "one of other GPUs"],
)
@pytest.mark.parametrize("groups", ["all", "setup", "job"])
def test_which_cluster_the_run_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: dict[str, int] | None, source: str, groups: str
) -> None:
    ray = stand_for_ray(resources)
    originals = dict(vars(ray))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")

    def launch_on_ray() -> None:
        from nemo_rl.distributed import virtual_cluster

        virtual_cluster.ray = ray
        assert (ray.init is originals["init"]) is (groups == "job")
        test_sft.launch(tmp_path)

    line = "rl.setup.ray_init (setup)"
    assert spans_of(launch_on_ray, groups) == only(
        groups, test_sft.TREE.replace(line, f"{line} rl.ray.cluster_source='{source}'")
    )
    assert dict(vars(ray)) == originals
