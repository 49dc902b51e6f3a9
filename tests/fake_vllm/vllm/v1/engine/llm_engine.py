from vllm.v1.engine.model import Engine


class LLMEngine(Engine):
    def __init__(self, engine_args):
        super().__init__(engine_args)
        self._waiting = []

    @classmethod
    def from_engine_args(cls, engine_args, usage_context=None):
        return cls(engine_args)

    def add_request(
        self,
        request_id,
        prompt,
        params,
        arrival_time=None,
        lora_request=None,
        tokenization_kwargs=None,
        trace_headers=None,
        priority=0,
        session_id=None,
        prompt_text=None,
        kv_hints=None,
    ):
        self._waiting.append((request_id, prompt, params, trace_headers))
        return request_id

    def run_all(self):
        waiting, self._waiting = self._waiting, []
        return [self.run(*request) for request in waiting]
