from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine


class LLM:
    def __init__(self, model, *, seed=0, **kwargs):
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs(model=model, seed=seed, **kwargs))
        self.model_config = self.llm_engine.model_config

    def generate(
        self,
        prompts,
        sampling_params=None,
        *,
        use_tqdm=True,
        lora_request=None,
        priority=None,
        tokenization_kwargs=None,
        mm_processor_kwargs=None,
    ):
        return self._run([prompts] if isinstance(prompts, str) else prompts, sampling_params)

    def chat(
        self,
        messages,
        sampling_params=None,
        use_tqdm=True,
        lora_request=None,
        priority=None,
        chat_template=None,
        chat_template_content_format="auto",
        add_generation_prompt=True,
        continue_final_message=False,
        tools=None,
        chat_template_kwargs=None,
        tokenization_kwargs=None,
        mm_processor_kwargs=None,
    ):
        conversations = [messages] if isinstance(messages[0], dict) else messages
        return self._run([" ".join(m["content"] for m in c) for c in conversations], sampling_params)

    def _run(self, prompts, params):
        for number, prompt in enumerate(prompts):
            self.llm_engine.add_request(str(number), prompt, params or SamplingParams(), lora_request=None, priority=0)
        return self.llm_engine.run_all()
