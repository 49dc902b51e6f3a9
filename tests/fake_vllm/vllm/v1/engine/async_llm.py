import asyncio
from dataclasses import replace

from vllm.v1.engine.model import Engine


class AsyncLLM(Engine):
    warned = False

    @classmethod
    def from_engine_args(cls, engine_args, start_engine_loop=True, usage_context=None, stat_loggers=None):
        return cls(engine_args)

    async def add_request(
        self,
        request_id,
        prompt,
        params,
        arrival_time=None,
        lora_request=None,
        tokenization_kwargs=None,
        trace_headers=None,
        priority=0,
        data_parallel_rank=None,
        session_id=None,
        prompt_text=None,
        reasoning_ended=None,
        reasoning_parser_kwargs=None,
        kv_hints=None,
    ):
        if trace_headers and self.observability_config.otlp_traces_endpoint is None:
            self.warned = True  # "Received a request with trace context but tracing is disabled"
            trace_headers = None
        await asyncio.sleep(0)
        return self.run(request_id, prompt, params, trace_headers)

    async def generate(
        self,
        prompt,
        sampling_params,
        request_id,
        *,
        prompt_text=None,
        lora_request=None,
        tokenization_kwargs=None,
        trace_headers=None,
        priority=0,
        data_parallel_rank=None,
        session_id=None,
        reasoning_ended=None,
        reasoning_parser_kwargs=None,
        kv_hints=None,
    ):
        found = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
        )
        for count in range(1, len(found.outputs[0].token_ids) + 1):
            await asyncio.sleep(0)
            outputs = [replace(output, token_ids=output.token_ids[:count]) for output in found.outputs]
            yield replace(found, outputs=outputs, finished=count == len(found.outputs[0].token_ids))
