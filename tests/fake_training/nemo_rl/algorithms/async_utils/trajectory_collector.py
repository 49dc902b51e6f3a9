"""Generates ahead of training, in threads. In NeMo RL a Ray actor; the threads are the same there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

from nemo_rl import _pace
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience.rollouts import RolloutGroupResult, run_async_multi_turn_rollout_groups
from nemo_rl.utils.timer import ThreadSafeTimer


class AsyncTrajectoryCollector:
    def __init__(
        self,
        policy_generation: Any,
        tokenizer: Any,
        task_to_env: dict[str, Any],
        master_config: Any,
        replay_buffer: Any,
        start_step: int = 0,
        teacher_worker_groups: dict[str, Any] | None = None,
        alias_to_group_alias: dict[str, str] | None = None,
        on_policy_distillation_cfg: dict[str, Any] | None = None,
        next_nemo_gym_task_index: int = 0,
        processor: Any = None,
    ) -> None:
        self.policy_generation = policy_generation
        self.tokenizer = tokenizer
        self.task_to_env = task_to_env
        self.master_config = master_config
        self.replay_buffer = replay_buffer
        self.current_weight_version = start_step
        if hasattr(master_config, "ppo"):
            self.algorithm_config = master_config.ppo
            self.async_config = self.algorithm_config.async_ppo
        else:
            self.algorithm_config = master_config.grpo
            self.async_config = self.algorithm_config.async_grpo
        self.running = False
        self.data_exhausted = False
        self.dataloader: Any = None
        self.collection_thread: threading.Thread | None = None
        self._failure: str | None = None
        self._generating_targets: set[int] = set()
        self._inflight_threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._efficiency_timer = ThreadSafeTimer(context={"worker": "collector"})
        self._manual_pause_cleared = threading.Event()
        self._refit_pause_cleared = threading.Event()
        self._generation_limit_cleared = threading.Event()
        self._set_events()

    def _set_events(self) -> None:
        self._manual_pause_cleared.set()
        self._refit_pause_cleared.set()
        self._generation_limit_cleared.set()

    def start_collection(self, dataloader: Any) -> None:
        self.running = True
        self.dataloader = dataloader
        self.collection_thread = threading.Thread(target=self._collection_loop, daemon=True)
        self.collection_thread.start()

    def _collection_loop(self) -> None:
        try:
            for batch in self.dataloader:
                self._wait_for_permission()
                if not self.running:
                    return
                self._process_batch(batch)
            self.data_exhausted = True
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self.running = False

    def _wait_for_permission(self) -> None:
        self._manual_pause_cleared.wait()
        if not self._refit_pause_cleared.is_set():
            with self._efficiency_timer.time("idle/refit_event_wait"):
                self._refit_pause_cleared.wait()
        # Cleared before it is asked whether to pause: a new version that comes in between is not missed.
        self._generation_limit_cleared.clear()
        if self.running and self._next_target() is None:
            with self._efficiency_timer.time("idle/generation_limit_pause"):
                self._generation_limit_cleared.wait()

    def _calculate_target_weights(self, generation_weight_version: int) -> list[int]:
        """Steps that weights of this version may generate for: the next ones, and this one where it lacks groups.

        It lacks them at the start, and where the version changed before the collector came to it: the loop would wait
        for them for ever.
        """
        lead = self.async_config.max_trajectory_age_steps
        return [generation_weight_version + i for i in range(lead + 1)]

    def _next_target(self) -> int | None:
        consumed = self.replay_buffer.get_last_target_weight_already_generated()
        with self._lock:
            for target in self._calculate_target_weights(self.current_weight_version):
                if target <= consumed or target in self._generating_targets:
                    continue
                if self.replay_buffer.get_trajectories_needed(
                    target, self.algorithm_config.num_prompts_per_step, self.async_config.max_trajectory_age_steps
                ):
                    return target
        return None

    def _process_batch(self, batch: BatchedDataDict) -> None:
        target_weight_version = self._next_target()
        if target_weight_version is None:
            return
        generation_weight_version = self.current_weight_version
        num_generations = self.algorithm_config.num_generations_per_prompt
        repeated_batch = batch.repeat_interleave(num_generations)

        def run() -> None:
            try:
                asyncio.run(
                    self._run_rollout_batch_worker(
                        repeated_batch=repeated_batch,
                        generation_weight_version=generation_weight_version,
                        target_weight_version=target_weight_version,
                        num_generations=num_generations,
                        use_nemo_gym=False,
                    )
                )
            finally:  # only here: who waits for what is pending waits for the thread's very end
                with self._lock:
                    self._inflight_threads.discard(worker)

        worker = threading.Thread(target=run, daemon=True)
        with self._lock:
            self._generating_targets.add(target_weight_version)
            self._inflight_threads.add(worker)
        worker.start()

    async def _run_rollout_batch_worker(
        self,
        repeated_batch: BatchedDataDict,
        generation_weight_version: int,
        target_weight_version: int,
        num_generations: int,
        use_nemo_gym: bool,
    ) -> None:
        started = time.perf_counter()
        try:
            async for group in self._rollout_groups(repeated_batch, num_generations):
                trajectory = {
                    "batch": group.final_batch,
                    "rollout_metrics": {
                        **group.rollout_metrics,
                        "trajectory_duration_s": time.perf_counter() - started,
                    },
                }
                await self._add(trajectory, generation_weight_version, target_weight_version)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._efficiency_timer.record("wasted/failed_trajectory", time.perf_counter() - started)
            # The driver learns of it from `check_health`; what waits here must not wait for ever.
            self.running = False
            self._set_events()
        finally:
            with self._lock:
                self._generating_targets.discard(target_weight_version)

    async def _add(self, trajectory: dict[str, Any], weight_version: int, target_weight_version: int) -> None:
        started = time.perf_counter()
        while self.replay_buffer.add(trajectory, weight_version, target_weight_version) == "full":
            if not self.running:
                return
            await asyncio.sleep(_pace.seconds("poll"))
            self._efficiency_timer.record("idle/buffer_full_backoff", time.perf_counter() - started)
            started = time.perf_counter()

    def _rollout_groups(
        self, repeated_batch: BatchedDataDict, num_generations: int
    ) -> AsyncGenerator[RolloutGroupResult, None]:
        return run_async_multi_turn_rollout_groups(
            self.policy_generation,
            repeated_batch,
            self.tokenizer,
            self.task_to_env,
            max_seq_len=self.master_config.policy["max_total_sequence_length"],
            num_generations=num_generations,
            max_rollout_turns=self.algorithm_config.max_rollout_turns,
        )

    def set_weight_version(self, version: int) -> None:
        self.current_weight_version = version
        self._generation_limit_cleared.set()

    def set_generation_window(
        self, *, weight_version: int, generation_lead_steps: int, max_trajectory_age_steps: int
    ) -> None:
        """As `set_weight_version`; PPO also says how far ahead, which does not change here."""
        self.set_weight_version(weight_version)

    def get_weight_version(self) -> int:
        return self.current_weight_version

    def check_health(self) -> None:
        """Raises RuntimeError once a rollout has failed, so that training does not wait for ever."""
        if self._failure is not None:
            raise RuntimeError(f"trajectory collection failed: {self._failure}")

    def get_status(self) -> dict[str, Any]:
        with self._lock:
            inflight = len(self._inflight_threads)
        return {
            "running": self.running,
            "data_exhausted": self.data_exhausted,
            "errored": self._failure is not None,
            "error": self._failure,
            "inflight_workers": inflight,
        }

    def pause(self) -> None:
        self._manual_pause_cleared.clear()

    def resume(self) -> None:
        self._manual_pause_cleared.set()

    def prepare_for_refit(self) -> None:
        """Starts no more generation; also waits for what runs, unless weights may change under it."""
        self._refit_pause_cleared.clear()
        if not self.async_config.in_flight_weight_updates:
            self.wait_for_pending_generations()

    def resume_after_refit(self) -> None:
        self._refit_pause_cleared.set()

    def wait_for_pending_generations(self) -> None:
        with self._lock:
            pending = list(self._inflight_threads)
        for thread in pending:
            thread.join()

    def get_dataloader_state(self) -> dict[str, Any]:
        return self.dataloader.state_dict()

    def get_efficiency_metrics(self) -> dict[str, float]:
        return self._efficiency_timer.get_timing_metrics(reduction_op="sum")

    def stop(self) -> None:
        """What `ray.kill` does in NeMo RL, but gently: threads end at their next wait."""
        self.running = False
        self._set_events()
        if self.collection_thread is not None:
            self.collection_thread.join(timeout=60)
        self.wait_for_pending_generations()
