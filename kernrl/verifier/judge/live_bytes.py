"""Bytes of the tensors that are alive while code runs, on any device, the meta device included."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernrl.verifier.base.compat import called_directly, no_torch_functions, storage_key


@called_directly
class LiveBytes(TorchDispatchMode):
    """Within, counts the storages that ATen calls return, until they are freed. Views and in-place results count once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        """Bytes alive at present, and at most since the last `restart`."""
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and storage_key(tensor) not in given:
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        with no_torch_functions():
            storage, key = tensor.untyped_storage(), storage_key(tensor)
            if key in self._alive:
                return
            self._alive[key] = storage.nbytes()
            self.now += self._alive[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key: int) -> None:
        self.now -= self._alive.pop(key, 0)

    def restart(self) -> None:
        """Forget the peak so far: what is alive now is the new one."""
        self.peak = self.now
