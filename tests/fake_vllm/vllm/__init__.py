"""A stand-in for vLLM; see ../README.md."""

from vllm.entrypoints.llm import LLM
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams"]
