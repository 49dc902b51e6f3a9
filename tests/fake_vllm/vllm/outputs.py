from dataclasses import dataclass


@dataclass
class CompletionOutput:
    index: int
    token_ids: list[int]


@dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
