"""A strict stand-in for vLLM's server, around a real small model: routes, order, refusals and cached prefixes as vLLM 0.33 has
them (`entrypoints/openai`, `entrypoints/rl`, `entrypoints/serve`), so that what forgets to reset a cache samples wrong tokens.
"""

from __future__ import annotations

import base64
import copy
import json
import pickle
import queue
import sys
import threading
import types
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import torch
from safetensors.torch import load_file

from support.tiny import tiny_policy

KNOWN_FIELDS = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "stop_token_ids", "logprobs", "return_token_ids",
}  # fmt: skip
"""vLLM ignores what it does not know; a misspelt field must not pass here."""

NAME = "served"


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class StandIn(ThreadingHTTPServer):
    """Serve `with StandIn(...) as server`, at `server.url`; `server.calls` notes every request in order."""

    daemon_threads = True

    def __init__(
        self, *, logprobs_mode="processed_logprobs", backend=None, dev_mode=True, lora=False, context=512, end_token=None
    ):
        super().__init__(("127.0.0.1", 0), Handler)
        self.policy = tiny_policy()
        self.adapters: dict[str, Any] = {}
        self.logprobs_mode, self.backend, self.dev_mode, self.lora, self.context = (
            logprobs_mode,
            backend,
            dev_mode,
            lora,
            context,
        )
        self.end_token = self.policy.tokenizer.eos_token_id if end_token is None else end_token
        self.calls: list[str] = []
        self.state = "running"
        self.transfer: dict[str, Any] | None = None
        self.prefixes: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.lock = threading.Lock()
        self.key: str | None = None
        self.faults: list[Any] = []
        """What to do instead of answering, one a request: a status, or a function of the handler."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # a client that hung up

    # --- routes --------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        if path == "/v1/models":
            cards = [{"id": NAME, "owned_by": "vllm", "parent": None, "max_model_len": self.context}]
            return {
                "data": cards + [{"id": n, "owned_by": "vllm", "parent": NAME, "max_model_len": None} for n in self.adapters]
            }
        if path == "/server_info" and self.dev_mode:
            transfer = {"backend": self.backend} if self.backend else None
            model = {"logprobs_mode": self.logprobs_mode, "dtype": "torch.float32"}
            parallel = {"data_parallel_size": 1}
            return {"vllm_config": {"model_config": model, "weight_transfer_config": transfer, "parallel_config": parallel}}
        if path == "/get_world_size" and self.dev_mode:
            return {"world_size": 1}
        raise Refusal(404, "Not Found")

    def post(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        always = {"/v1/completions": self.complete}
        loras = {"/v1/load_lora_adapter": self.load_lora, "/v1/unload_lora_adapter": self.unload_lora}
        dev = {
            "/pause": lambda body: self.pause(query["mode"][0]),
            "/resume": lambda body: self.move(("paused", "running"), "running"),
            "/reset_prefix_cache": lambda body: self.reset(),
            "/init_weight_transfer_engine": self.init_transfer,
            "/start_weight_update": lambda body: self.move(("paused",), "updating"),
            "/update_weights": self.update,
            "/finish_weight_update": lambda body: self.move(("updating",), "paused"),
            "/collective_rpc": self.collective_rpc,
        }
        routes = always | (loras if self.lora else {}) | (dev if self.dev_mode else {})
        if path not in routes:
            raise Refusal(404, "Not Found")
        return routes[path](body)

    def move(self, allowed: tuple[str, ...], state: str) -> Any:
        if self.state not in allowed:
            raise Refusal(500, f"{state} asked for while {self.state}")
        self.state = state
        return {"status": state}

    def pause(self, mode: str) -> Any:
        if mode not in ("abort", "wait", "keep"):
            raise Refusal(422, f"mode {mode}")
        with self.lock:  # "wait": until nothing is sampled
            return self.move(("running", "paused"), "paused")

    def reset(self) -> Any:
        self.prefixes.clear()
        return {"success": True}

    def init_transfer(self, body: Any) -> Any:
        self.transfer = body["init_info"]
        if self.backend == "nccl":
            assert self.transfer
            assert self.transfer["world_size"] == 2
            assert self.transfer["rank_offset"] == 1
            meeting(self.transfer)  # blocks until the trainer is there too
        return {"message": "Weight transfer initialized"}

    def update(self, body: Any) -> Any:
        if self.state != "updating" or self.transfer is None:
            raise Refusal(500, f"weights came while {self.state}")
        info = body["update_info"]
        if self.backend == "ipc":
            tensors = iter(pickle.loads(base64.b64decode(info["ipc_handles_pickled"])))
        else:
            tensors = iter(meeting(self.transfer).get, None)
        mine = dict(self.policy.model.named_parameters())
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            tensor = next(tensors)
            if (str(tensor.dtype), list(tensor.shape)) != (f"torch.{dtype}", shape) or name not in mine:
                raise Refusal(500, f"{name} is not as announced")
            with torch.no_grad():
                mine[name].copy_(tensor)
        return {"message": "Weights updated"}

    def collective_rpc(self, body: Any) -> Any:
        if self.state != "paused" or body["method"] != "reload_weights":
            raise Refusal(500, f"{body['method']} while {self.state}")
        weights = load_file(f"{body['kwargs']['weights_path']}/model.safetensors")
        self.policy.model.load_state_dict(weights, strict=False)
        return {"results": [None]}

    def load_lora(self, body: Any) -> Any:
        from peft import PeftModel

        if body["lora_name"] in self.adapters:
            raise Refusal(400, f"The lora adapter '{body['lora_name']}' has already been loaded.")
        self.adapters[body["lora_name"]] = PeftModel.from_pretrained(copy.deepcopy(self.policy.model), body["lora_path"])
        return f"Success: LoRA adapter '{body['lora_name']}' added successfully."

    def unload_lora(self, body: Any) -> Any:
        if self.adapters.pop(body["lora_name"], None) is None:
            raise Refusal(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
        return "Success"

    # --- sampling ------------------------------------------------------------------------------------------------

    def complete(self, body: Any) -> Any:
        if self.state != "running":
            raise Refusal(503, "the engine is paused")
        if unknown := body.keys() - KNOWN_FIELDS:
            raise Refusal(400, f"unknown fields {sorted(unknown)}")
        model = self.policy.model if body["model"] == NAME else self.adapters.get(body["model"])
        if model is None:
            raise Refusal(404, f"The model `{body['model']}` does not exist.")
        if len(body["prompt"]) + body["max_tokens"] > self.context:
            raise Refusal(400, f"maximum context length is {self.context} tokens")
        with self.lock, torch.no_grad():
            ids, logprobs, finish = self.sample(model, body)
        given = {"token_logprobs": logprobs, "tokens": [f"token_id:{i}" for i in ids], "top_logprobs": None}
        text = self.policy.tokenizer.decode(ids)
        choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": finish, "logprobs": given}
        return {"object": "text_completion", "model": body["model"], "choices": [choice]}

    def sample(self, model: Any, body: Any) -> tuple[list[int], list[float], str]:
        stops, generator = {*body["stop_token_ids"], self.end_token}, torch.Generator().manual_seed(body["seed"])
        logits, cache = self.prefix(model, body["model"], body["prompt"])
        ids, logprobs = [], []
        while True:
            scaled = logits if body["temperature"] == 1 else logits / body["temperature"]
            token = int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))
            shown = scaled if self.logprobs_mode == "processed_logprobs" else logits
            ids.append(token)
            logprobs.append(shown.log_softmax(-1)[token].item())
            if token in stops or len(ids) == body["max_tokens"]:
                return ids, logprobs, "stop" if token in stops else "length"
            output = model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            logits, cache = output.logits[0, -1].double(), output.past_key_values

    def prefix(self, model: Any, name: str, prompt: list[int]) -> Any:
        """Logits and keys and values of a prompt: those of the first time it was seen under this model's name."""
        key = (name, tuple(prompt))
        if key not in self.prefixes:
            output = model(input_ids=torch.tensor([prompt]), use_cache=True)
            self.prefixes[key] = (output.logits[0, -1].double(), output.past_key_values)
        return copy.deepcopy(self.prefixes[key])


class Handler(BaseHTTPRequestHandler):
    server: StandIn  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self):
        self.answer(lambda: self.server.get(urlsplit(self.path).path))

    def do_POST(self):
        parts = urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(lambda: self.server.post(parts.path, parse_qs(parts.query), json.loads(text) if text else None))

    def answer(self, make) -> None:
        self.server.calls.append(urlsplit(self.path).path)
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return self.send(401, {"error": "Unauthorized"})
        if self.server.faults:
            fault = self.server.faults.pop(0)
            if callable(fault):
                return fault(self)
            return self.send(fault, {"error": {"message": "out of order"}})
        try:
            self.send(200, make())
        except Refusal as refusal:
            self.send(refusal.status, {"error": {"message": str(refusal)}})

    def send(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


# --- the trainer's half of vLLM's weight transfer, without a GPU -----------------------------------------------------

_meetings: dict[tuple[str, int], queue.Queue[Any]] = {}
_barriers: dict[tuple[str, int], threading.Barrier] = {}


def meeting(info: dict[str, Any]) -> queue.Queue[Any]:
    """The broadcast channel of a rendezvous; the first call of each of its two members waits for the other."""
    place = (info["master_address"], info["master_port"])
    if place not in _meetings:
        _barriers.setdefault(place, threading.Barrier(2)).wait(10)
        _meetings.setdefault(place, queue.Queue())
    return _meetings[place]


class WeightSource(ABC):
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if not isinstance(cls.__dict__.get("metadata"), cached_property):
            raise TypeError("metadata must be a functools.cached_property")

    @property
    @abstractmethod
    def metadata(self) -> list[Any]: ...


@dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass
class NCCLTrainerInitInfo:
    backend: ClassVar[str] = "nccl"
    master_address: str
    master_port: int
    world_size: int
    rank: int = 0


@dataclass
class IPCTrainerInitInfo:
    backend: ClassVar[str] = "ipc"
    rank: int = 0
    packed: bool = False


class TrainerEngine:
    def __init__(self, info, client, source):
        self.info, self.client, self.source = info, client, source
        if info.backend == "nccl":
            place = {"master_address": info.master_address, "master_port": info.master_port}
            payload = {**place, "world_size": info.world_size, "rank_offset": 1, "packed": True}
            with ThreadPoolExecutor(1) as thread:
                asked = thread.submit(client.init_weight_transfer_engine, payload)
                self.channel = meeting(place)
                asked.result()
        else:
            client.init_weight_transfer_engine({"packed": info.packed})

    def send_weights(self):
        meta = self.source.metadata
        update = {
            "names": [m.name for m in meta],
            "dtype_names": [str(m.dtype).split(".")[-1] for m in meta],
            "shapes": [list(m.shape) for m in meta],
        }
        self.client.start_weight_update()
        if self.info.backend == "ipc":
            self.client.update_weights(update | {"ipc_handles": [tensor for _, tensor in self.source.iter_full()]})
        else:
            with ThreadPoolExecutor(1) as thread:
                asked = thread.submit(self.client.update_weights, update)
                for _, tensor in self.source.iter_full():
                    self.channel.put(tensor)
                asked.result()
        self.client.finish_weight_update()

    def shutdown(self):
        pass


def install_vllm(monkeypatch) -> None:
    """Put modules of vLLM's names where `import` finds them."""
    package = "vllm.distributed.weight_transfer"
    base = types.ModuleType(f"{package}.base")
    base.WeightSource, base.ParamMeta = WeightSource, ParamMeta  # pyright: ignore[reportAttributeAccessIssue]
    factory = types.ModuleType(f"{package}.factory")

    class Factory:
        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            return TrainerEngine(init_info, client, source)

    factory.WeightTransferTrainerFactory = Factory  # pyright: ignore[reportAttributeAccessIssue]
    nccl, ipc = types.ModuleType(f"{package}.nccl_engine"), types.ModuleType(f"{package}.ipc_engine")
    nccl.NCCLTrainerInitInfo = NCCLTrainerInitInfo  # pyright: ignore[reportAttributeAccessIssue]
    ipc.IPCTrainerInitInfo = IPCTrainerInitInfo  # pyright: ignore[reportAttributeAccessIssue]
    root = types.ModuleType(package)
    root.base, root.factory = base, factory  # pyright: ignore[reportAttributeAccessIssue]
    for module in (types.ModuleType("vllm"), types.ModuleType("vllm.distributed"), root, base, factory, nccl, ipc):
        monkeypatch.setitem(sys.modules, module.__name__, module)
