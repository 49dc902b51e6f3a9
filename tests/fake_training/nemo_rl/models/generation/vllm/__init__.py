from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration

__all__ = ["VllmGeneration"]
