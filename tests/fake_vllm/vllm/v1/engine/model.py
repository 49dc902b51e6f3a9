"""What stands for the model: tokens from the request's own random stream."""

import random
import time

from vllm.engine.arg_utils import ModelConfig, ObservabilityConfig
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.tracing import init_tracer, llm_request


class Engine:
    def __init__(self, engine_args):
        self.model_config = ModelConfig(engine_args.model)
        self.observability_config = ObservabilityConfig(engine_args.otlp_traces_endpoint)
        self._seed = engine_args.seed
        endpoint = self.observability_config.otlp_traces_endpoint
        if endpoint is not None:
            init_tracer("vllm.llm_engine", endpoint)

    def run(self, request_id, prompt, params, trace_headers):
        start = time.time_ns()
        stream = random.Random(f"{self._seed} {params.seed} {prompt}")
        length = params.max_tokens or 4
        outputs = [CompletionOutput(i, [stream.randrange(100) for _ in range(length)]) for i in range(params.n)]
        tokens = [ord(letter) for letter in prompt]
        if self.observability_config.otlp_traces_endpoint is not None:
            llm_request(trace_headers, start, time.time_ns(), {"gen_ai.request.id": request_id})
        return RequestOutput(request_id, tokens, outputs)
