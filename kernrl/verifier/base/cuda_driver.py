"""The few calls of the CUDA driver that replay needs, by ctypes: load machine code, launch it, share memory.

They act in torch's primary context, so torch tensors serve as buffers. A failed call raises CudaError with the driver's name
of the error.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import torch

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED_BYTES = 48 << 10
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_CLUSTER_DIMENSION, _COOPERATIVE = 4, 2  # CUlaunchAttributeID
_OUT_OF_MEMORY, _NOT_INITIALIZED = 2, 3  # CUresult
_PERSISTING_L2_LIMIT = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE

LEAST_GRANTED_BYTES = 1 << 30


class CudaError(RuntimeError):
    """A driver call failed."""


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("n_attributes", ctypes.c_uint),
    )


@cache
def _library() -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer, size, uint = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
    cuda.cuLaunchKernel.argtypes = [pointer, *[uint] * 7, pointer, pointer, pointer]
    cuda.cuLaunchKernelEx.argtypes = [pointer, pointer, pointer, pointer]
    cuda.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
    cuda.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    cuda.cuModuleUnload.argtypes = [pointer]
    cuda.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    cuda.cuMemAlloc_v2.argtypes = [pointer, size]
    cuda.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    cuda.cuIpcGetMemHandle.argtypes = [pointer, ctypes.c_uint64]
    cuda.cuIpcOpenMemHandle_v2.argtypes = [pointer, _IpcHandle, uint]
    cuda.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]
    cuda.cuCtxSetLimit.argtypes = [ctypes.c_int, size]
    return cuda


def check(code: int, what: str) -> None:
    """Raise CudaError naming the failed call."""
    if code:
        name = ctypes.c_char_p()
        _library().cuGetErrorName(code, ctypes.byref(name))
        raise CudaError(f"{what}: {(name.value or b'CUDA error').decode()}")


def load(cubin: bytes, name: str, shared_bytes: int) -> tuple[int, int]:
    """Load a cubin; returns the handles (module, function). The function may use the dynamic shared memory that it asks for."""
    cuda, module, function = _library(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), cubin), f"load {name}")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"find {name}")
    if shared_bytes > _DEFAULT_SHARED_BYTES:
        check(cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes), f"{name} asks for {shared_bytes} bytes")
    assert module.value is not None
    assert function.value is not None
    return module.value, function.value


def unload(module: int) -> None:
    """Unload a module. None of its functions may be running or captured in a live graph."""
    check(_library().cuModuleUnload(module), "unload")


class Launch:
    """One launch with everything but the stream fixed; `pointers` may be changed between calls."""

    def __init__(
        self, name: str, function: int, grid: tuple[int, int, int], threads: int, shared_bytes: int,
        values: list[Any], *, cluster: int = 1, cooperative: bool = False,
    ):  # fmt: skip
        self.name, self.values = name, values
        self._array = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        self._fixed = (function, grid[0], grid[1], grid[2], threads, 1, 1, shared_bytes)
        self._config = None
        self._call = _library().cuLaunchKernel
        if cluster > 1 or cooperative:
            attributes = []
            if cluster > 1:
                attributes.append(_LaunchAttribute(_CLUSTER_DIMENSION, value=(ctypes.c_uint32 * 16)(cluster, 1, 1)))
            if cooperative:
                attributes.append(_LaunchAttribute(_COOPERATIVE, value=(ctypes.c_uint32 * 16)(1)))
            self._attributes = (_LaunchAttribute * len(attributes))(*attributes)
            # a grid counts programs; each program is a whole cluster of blocks along x
            fields = (grid[0] * cluster, grid[1], grid[2], threads, 1, 1, shared_bytes, None)
            self._config = _LaunchConfig(*fields, self._attributes, len(attributes))

    def __call__(self, stream: int) -> None:
        """Queue the launch on a stream, by its handle."""
        if self._config is None:
            code = self._call(*self._fixed, stream, self._array, None)
        else:
            self._config.stream = stream
            code = _library().cuLaunchKernelEx(ctypes.byref(self._config), self._fixed[0], self._array, None)
        if code:
            check(code, f"launch {self.name}")


class _ArrayInterface:
    """Device memory in the form that torch reads."""

    def __init__(self, address: int, nbytes: int, owner: object = None):
        """`owner` lives as long as the tensor."""
        self._owner = owner
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def shareable(nbytes: int) -> tuple[torch.Tensor, bytes]:
    """uint8 [nbytes] of new device memory, and the handle by which another process of this machine opens it; see `free`.

    Raises torch.OutOfMemoryError.
    """
    address, handle = ctypes.c_uint64(), _IpcHandle()
    code = _library().cuMemAlloc_v2(ctypes.byref(address), nbytes)
    if code == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"{nbytes >> 20} MiB to share cannot be allocated")
    check(code, f"allocate {nbytes} bytes")
    check(_library().cuIpcGetMemHandle(ctypes.byref(handle), address), "share memory")
    return torch.as_tensor(_ArrayInterface(address.value, nbytes), device="cuda"), bytes(handle)


def claimed(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes] on the GPU, with one byte of memory behind it: for code that reads tensors' shapes, never their numbers.

    Whatever reads or writes it may fault.
    """
    byte = torch.zeros(1, dtype=torch.uint8, device="cuda")
    return torch.as_tensor(_ArrayInterface(byte.data_ptr(), nbytes, byte), device="cuda")


def free(memory: torch.Tensor) -> None:
    """Free memory from `shareable`, after the other process has closed it."""
    torch.cuda.synchronize()
    check(_library().cuMemFree_v2(memory.data_ptr()), "free shared memory")


def close_shared(memory: torch.Tensor) -> None:
    """Close memory from `open_shared`."""
    torch.cuda.synchronize()
    check(_library().cuIpcCloseMemHandle(memory.data_ptr()), "close shared memory")


def open_shared(handle: bytes, nbytes: int) -> torch.Tensor:
    """The memory behind another process's handle, uint8 [nbytes]."""
    address = ctypes.c_uint64()
    parsed = _IpcHandle.from_buffer_copy(handle)
    check(_library().cuIpcOpenMemHandle_v2(ctypes.byref(address), parsed, _LAZY_PEER_ACCESS), "open shared memory")
    return torch.as_tensor(_ArrayInterface(address.value, nbytes), device="cuda")


def forbid_persisting_l2() -> None:
    """Let no line of L2 survive the flush between timed calls."""
    code = _library().cuCtxSetLimit(_PERSISTING_L2_LIMIT, 0)
    if code not in (0, 215, 801):  # the limit is not supported, so there is nothing to forbid
        check(code, "persisting L2 limit")


def granted_bytes(share: float) -> float:
    """Bytes that a process may hold: this share of the GPU's free memory, and at least `LEAST_GRANTED_BYTES`."""
    return max(share * torch.cuda.mem_get_info()[0], LEAST_GRANTED_BYTES)


def version() -> str:
    """The newest CUDA version the installed driver serves, such as `13.0`."""
    number = ctypes.c_int()
    check(_library().cuDriverGetVersion(ctypes.byref(number)), "driver version")
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def initialised() -> bool:
    """Whether anything has initialised the driver in this process. Does not initialise it."""
    try:
        loaded = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return loaded.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED


def works() -> bool:
    """Whether CUDA still computes here: a faulting kernel breaks the context for good, a failed capture torch's generator."""
    try:
        torch.cuda.synchronize()
        return torch.rand(1, device="cuda").item() < 1.0
    except RuntimeError:
        return False
