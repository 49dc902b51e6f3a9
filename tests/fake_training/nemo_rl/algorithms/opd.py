"""On-policy distillation with teachers of its own."""

from __future__ import annotations

from typing import Any

from nemo_rl.models.policy.teacher_worker_group import TeacherWorkerGroup


def create_teacher_worker_groups(
    master_config: Any, policy_config: dict[str, Any], tokenizer: Any, *, teacher_clusters: dict[str, Any]
) -> dict[str, TeacherWorkerGroup]:
    return {
        alias: TeacherWorkerGroup(None, cluster, policy_config, tokenizer)
        for alias, cluster in teacher_clusters.items()
    }
