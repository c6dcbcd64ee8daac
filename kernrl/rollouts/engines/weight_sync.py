"""Sending new weights to a model server: by vLLM's own transports, as a checkpoint, or as a LoRA adapter.

In each case `push` returns only when no later request can see the old weights, or keys and values cached under them.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import torch
from torch import Tensor

from kernrl.errors import InfrastructureError, UsageError
from kernrl.http_client import Server
from kernrl.policy.load import Policy
from kernrl.rollouts.engines.engine import NamedTensors

KEPT = 2
"""Newest folders that are kept: the server may still be reading the last but one."""


class WeightSync(Protocol):
    """A way to send weights."""

    def push(self, named: NamedTensors, version: int) -> str:
        """Make the server sample from these weights; returns the model name to ask for from now on."""
        ...

    def close(self) -> None:
        """Release what the transport holds."""
        ...


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """Pause vLLM, and empty its prefix cache at the end, which a weight update leaves as it is.

    When the body fails the server stays paused: half of its weights are old.
    """
    server.post("/pause?mode=wait")
    yield
    for _ in range(20):
        answer = server.post("/reset_prefix_cache")
        if answer != {"success": False}:  # before 0.26 the answer was empty
            break
        time.sleep(0.25)  # the last requests hold cache blocks a little longer
    else:
        raise InfrastructureError(f"--server-url {server.url}: the prefix cache cannot be reset: requests hold it.")
    server.post("/resume")


class NativeTransfer:
    """vLLM's weight transfer (0.28 or later): NCCL broadcast to any server, or CUDA IPC to one on the same GPU.

    The trainer's side of the protocol is vLLM's own code, so vLLM must be installed beside kernrl. The server must be started
    with VLLM_SERVER_DEV_MODE=1 and `--weight-transfer-config '{"backend": "nccl"}'` (or "ipc", with
    VLLM_ALLOW_INSECURE_SERIALIZATION=1).

    Args:
        model: the model's name on the server.
        dtype: of the weights as they are sent: the server's.
    """

    def __init__(self, server: Server, backend: Literal["nccl", "ipc"], model: str, dtype: torch.dtype):
        try:
            from vllm.distributed.weight_transfer import base, factory  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UsageError(
                f"--weight-sync {backend} needs vllm 0.28 or later beside kernrl ({error}): pip install vllm, or use "
                "--weight-sync checkpoint."
            ) from None
        self._server, self._backend, self._model, self._dtype = server, backend, model, dtype
        self._base, self._factory = base, factory
        self._engine: Any = None
        self._named: NamedTensors = lambda: iter(())

    def push(self, named: NamedTensors, version: int) -> str:
        """See `WeightSync.push`."""
        self._named = named
        with paused(self._server):
            if self._engine is None:
                self._engine = self._factory.WeightTransferTrainerFactory.trainer_init(
                    self._start_info(), client=_Control(self._server), source=self._source()
                )
            self._engine.send_weights()
        return self._model

    def close(self) -> None:
        """See `WeightSync.close`."""
        if self._engine is not None:
            self._engine.shutdown()

    def _start_info(self) -> Any:
        if self._backend == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
                IPCTrainerInitInfo,
            )

            return IPCTrainerInitInfo(rank=0, packed=True)
        from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
            NCCLTrainerInitInfo,
        )

        workers = self._server.get("/get_world_size")["world_size"]
        address, port = _own_address(self._server.url)
        return NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=workers + 1, rank=0)

    def _source(self) -> Any:
        """The weights as vLLM's trainer code reads them: described once, and iterated at every update."""
        transfer, base = self, self._base

        class Source(base.WeightSource):
            @cached_property
            def metadata(self) -> list[Any]:
                return [base.ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.iter_full()]

            def iter_full(self) -> Iterator[tuple[str, Tensor]]:
                for name, tensor in transfer._named():
                    yield name, tensor.detach().to(transfer._dtype).contiguous()

        return Source()


class _Control:
    """The server's routes for vLLM's trainer code."""

    def __init__(self, server: Server):
        self._server = server

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._server.post("/init_weight_transfer_engine", {"init_info": init_info}, once=True)

    def start_weight_update(self) -> None:
        self._server.post("/start_weight_update", once=True)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        handles = update_info.pop("ipc_handles", None)
        if handles is not None:
            update_info["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(handles)).decode()
        self._server.post("/update_weights", {"update_info": update_info}, once=True)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._server.post("/finish_weight_update", weight_version and {"weight_version": weight_version}, once=True)


class CheckpointReload:
    """Save the weights in a folder that the server can read, and have it load them.

    Args:
        folder: parent of the versions, of which the newest `KEPT` are kept.
        load: makes the server load a folder, and returns the model name to ask for.
    """

    def __init__(self, policy: Policy, folder: Path, dtype: torch.dtype, load: Callable[[Path], str]):
        self._policy, self._folder, self._dtype, self._load = policy, folder.resolve(), dtype, load

    def push(self, named: NamedTensors, version: int) -> str:
        """See `WeightSync.push`."""
        weights = {name: tensor.detach().to("cpu", self._dtype) for name, tensor in named()}
        target = fresh(self._folder / f"v{version}")
        self._policy.model.save_pretrained(target, state_dict=weights)
        self._policy.tokenizer.save_pretrained(target)
        name = self._load(target)
        drop_old(self._folder)
        return name

    def close(self) -> None:
        """See `WeightSync.close`."""
        shutil.rmtree(self._folder, ignore_errors=True)


def reload_vllm(server: Server, model: str) -> Callable[[Path], str]:
    """Have vLLM's workers read a folder, in place."""

    def load(folder: Path) -> str:
        with paused(server):
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            server.post("/collective_rpc", body, once=True)
        return model

    return load


def reload_sglang(server: Server, model: str) -> Callable[[Path], str]:
    """Have SGLang read a folder, in place; it empties its cache itself."""

    def load(folder: Path) -> str:
        server.post("/update_weights_from_disk", {"model_path": str(folder), "flush_cache": True}, once=True)
        return model

    return load


def reload_transformers(server: Server) -> Callable[[Path], str]:
    """Have `transformers serve` unload every model and load the folder."""

    def load(folder: Path) -> str:
        server.post("/reset")
        events = str(
            server.post("/load_model", {"model": str(folder)})
        )  # a stream of progress, whose last event is the outcome
        if '"status": "ready"' not in events:
            raise InfrastructureError(f"--server-url {server.url}: /load_model: {events.strip().splitlines()[-1:]}")
        return str(folder)

    return load


class AdapterLoad:
    """Save the LoRA adapter, and have vLLM load it under a new name.

    vLLM keys cached prefixes by the adapter's name, so a name is never used twice, not even by another run. The server
    must be started with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and see the folder.
    """

    def __init__(self, server: Server, policy: Policy, folder: Path):
        self._server, self._policy, self._folder = server, policy, folder.resolve()
        self._run, self._count = secrets.token_hex(4), 0
        self._loaded: str | None = None

    def push(self, named: NamedTensors, version: int) -> str:
        """See `WeightSync.push`. `named` is not used: the adapter is small, and saved whole."""
        self._count += 1
        name = f"kernrl-{self._run}-{self._count}"
        target = fresh(self._folder / name)
        self._policy.model.save_pretrained(target)
        self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(target)}, once=True)
        self._unload()
        self._loaded = name
        drop_old(self._folder)
        return name

    def close(self) -> None:
        """See `WeightSync.close`: the adapter is unloaded, and its files removed."""
        with contextlib.suppress(UsageError, InfrastructureError):  # the server itself may have failed
            self._unload()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _unload(self) -> None:
        if self._loaded is not None:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": self._loaded}, once=True)
            self._loaded = None


def fresh(folder: Path) -> Path:
    """An empty folder at this path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def drop_old(folder: Path) -> None:
    """Remove all but the newest `KEPT` versions."""
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _own_address(url: str) -> tuple[str, int]:
    """This machine's address as the server sees it, and a free port."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        probe.connect((parts.hostname or "localhost", parts.port or 80))
        address = probe.getsockname()[0]
    with socket.socket() as listener:
        listener.bind(("", 0))
        return address, listener.getsockname()[1]
