"""Building, in the driver, what the single controller's actor is given."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
from nemo_rl.algorithms.loss import ClippedPGLossFn, MseValueLossFn
from nemo_rl.algorithms.utils import set_seed
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data.dataloader import StatefulDataLoader
from nemo_rl.data.utils import setup_response_data
from nemo_rl.data_plane import build_data_plane_client
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.experience.rollout_manager import RolloutManager
from nemo_rl.models.generation.vllm import VllmGeneration
from nemo_rl.models.policy.tq_policy import TQPolicy
from nemo_rl.models.value.lm_value import Value
from nemo_rl.weight_sync.collective_weight_synchronizer import CollectiveWeightSynchronizer


@dataclass
class SingleControllerActorArgs:
    gen_handle: Any
    trainer_handle: Any
    env_handles: dict[str, Any]
    dp_client: Any
    dataloader: Any
    weight_synchronizer: Any
    loss_fn: Any
    rollout_manager: Any
    tq_buffer: Any
    partition_id: str
    value_handle: Any = None
    value_loss_fn: Any = None


def setup_single_controller(
    master_config: Any, tokenizer: Any, *, processor: Any = None, partition_id: str = "rollout_data"
) -> tuple[SingleControllerActorArgs, dict[str, float]]:
    """(what the actor is given, how long it took)."""
    algorithm = master_config.algorithm
    set_seed(algorithm.seed)
    dataset, _, task_to_env, _ = setup_response_data(tokenizer, master_config.data, master_config.env)
    dataloader = StatefulDataLoader(dataset, algorithm.num_prompts_per_step, False, rl_collate_fn)
    cluster = RayVirtualCluster([1])

    def build_generation_then_trainer() -> tuple[Any, Any]:
        generation = VllmGeneration(cluster, master_config.policy["generation"])
        trainer = TQPolicy(
            cluster, master_config.policy, tokenizer, dp_cfg=master_config.data_plane, tq_partition_id=partition_id
        )
        return generation, trainer

    with ThreadPoolExecutor(max_workers=1) as executor:
        generation, trainer = executor.submit(build_generation_then_trainer).result()
    generation.prepare_refit_info(trainer.prepare_refit_info())
    value_model = Value(cluster, master_config.value, tokenizer) if algorithm.ppo_epochs else None

    dp_client = build_data_plane_client(master_config.data_plane, bootstrap=False)
    weight_synchronizer = CollectiveWeightSynchronizer(trainer, generation, cluster, cluster)
    weight_synchronizer.init_communicator()
    dp_client.register_partition(partition_id, fields=[], num_samples=64, consumer_tasks=["train"])
    tq_buffer = TQReplayBuffer(dp_client, partition_id, pad_value_dict={"input_ids": tokenizer.pad_token_id})
    rollout_manager = RolloutManager(
        tokenizer=tokenizer,
        task_to_env=task_to_env,
        num_generations_per_prompt=algorithm.num_generations_per_prompt,
        max_seq_len=master_config.policy["max_total_sequence_length"],
        policy_generation=generation,
        tq_buffer=tq_buffer,
    )
    actor_args = SingleControllerActorArgs(
        gen_handle=generation,
        trainer_handle=trainer,
        env_handles=task_to_env,
        dp_client=dp_client,
        dataloader=dataloader,
        weight_synchronizer=weight_synchronizer,
        loss_fn=ClippedPGLossFn(master_config.loss_fn),
        rollout_manager=rollout_manager,
        tq_buffer=tq_buffer,
        partition_id=partition_id,
        value_handle=value_model,
        value_loss_fn=MseValueLossFn({}),
    )
    return actor_args, {"total_setup_time_s": 0.0}
