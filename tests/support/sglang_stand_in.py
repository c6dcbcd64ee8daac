"""A strict stand-in for SGLang's own routes (0.5.23: `entrypoints/http_server.py`, `managers/io_struct.py`,
`sampling/sampling_params.py`), around the same small model and with the same cached prefixes as the one for vLLM.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file

from support.vllm_stand_in import NAME, Refusal, StandIn

REQUEST_FIELDS = {"input_ids", "sampling_params", "return_logprob"}
SAMPLING_FIELDS = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "stop_token_ids", "sampling_seed",
}  # fmt: skip
"""SGLang refuses a sampling parameter that it does not know; of a request's fields it would not notice."""


class SglangStandIn(StandIn):
    """Serve `with SglangStandIn() as server`."""

    def get(self, path: str) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": NAME, "owned_by": "sglang", "root": NAME, "parent": None, "max_model_len": self.context}]}
        raise Refusal(404, "Not Found")

    def post(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        routes = {"/generate": self.generate, "/update_weights_from_disk": self.update_from_disk}
        if path not in routes:
            raise Refusal(404, "Not Found")
        return routes[path](body)

    def generate(self, body: Any) -> Any:
        asked = body["sampling_params"]
        if unknown := (body.keys() - REQUEST_FIELDS) | (asked.keys() - SAMPLING_FIELDS):
            raise Refusal(400, f"unexpected keyword arguments {sorted(unknown)}")
        if asked["top_k"] < 1 and asked["top_k"] != -1:
            raise Refusal(400, f"top_k must be -1 (disable), or at least 1, got {asked['top_k']}.")
        prompt = body["input_ids"]
        if len(prompt) + asked["max_new_tokens"] > self.context:
            raise Refusal(400, f"Requested token count exceeds the model's maximum context length of {self.context} tokens.")
        wanted = {
            **asked,
            "model": NAME,
            "prompt": prompt,
            "seed": asked["sampling_seed"],
            "max_tokens": asked["max_new_tokens"],
        }
        with self.lock, torch.no_grad():
            ids, logprobs, finish = self.sample(self.policy.model, wanted)
        reason = {"type": "stop", "matched": ids[-1]} if finish == "stop" else {"type": "length", "length": len(ids)}
        about = {
            "id": "1",
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "weight_version": "default",
        }
        if body["return_logprob"]:
            about["output_token_logprobs"] = [[value, token, None] for value, token in zip(logprobs, ids, strict=True)]
        return {"text": self.policy.tokenizer.decode(ids), "output_ids": ids, "meta_info": about}

    def update_from_disk(self, body: Any) -> Any:
        with self.lock:  # until nothing is sampled
            try:
                weights = load_file(f"{body['model_path']}/model.safetensors")
            except OSError as error:
                raise Refusal(400, f"Failed to load weights: {error}") from None
            self.policy.model.load_state_dict(weights, strict=False)
            if body["flush_cache"]:
                self.prefixes.clear()
        return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
