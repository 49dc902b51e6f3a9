from nemo_rl.algorithms.async_utils.replay_buffer import ReplayBuffer
from nemo_rl.algorithms.async_utils.trajectory_collector import AsyncTrajectoryCollector

__all__ = ["AsyncTrajectoryCollector", "ReplayBuffer"]
