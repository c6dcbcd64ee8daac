"""The function mode under which meta tensors look like CUDA tensors: `x.is_cuda`, `x.device`, `device="cuda"`, `.to("cuda")`.

`torch.cuda` and the driver, which code asks without a tensor, are stood in for by `launch/fake_cuda.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions, redraws
from kernrl.verifier.trace.recorder import CPU, CUDA, FAKE_ADDRESS_BITS, META, Recorder, tensors_in
from kernrl.verifier.trace.untraceable import VALUE_NEEDED, Untraceable


def _named(place: torch.device | str | int) -> torch.device:
    """A device; torch would ask a driver which kind the one of this number is."""
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


_VALUES = {
    name: what
    for what, names in {
        ".item()": ("item", "__float__", "__int__", "__index__", "__complex__"),
        ".tolist() or .numpy()": ("tolist", "numpy", "__array__"),
        "a condition on a tensor": ("__bool__",),
        ".cpu()": ("cpu",),
        "torch.allclose, which belongs in a test": ("allclose",),
        "torch.istft, which looks at its window's numbers": ("istft",),
    }.items()
    for name in names
}


_OF_SEVERAL = ("allclose", "istft")
"""Of these, the first operand alone does not say what they give."""


_BY_GRADIENTS = frozenset((
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.linalg.matmul,
    torch.nn.functional.linear, torch.nn.functional.embedding_bag, torch.embedding_bag,
))  # fmt: skip
"""They call other operators where an operand needs gradients."""


class LookLikeCuda(TorchFunctionMode):
    """Makes meta tensors answer Python code as CUDA tensors would, above dispatch."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args)
        if name in _VALUES and args and isinstance(args[0], torch.Tensor):
            if name == "cpu" and self.recorder.is_cpu(args[0]):
                return args[0]
            if name == "__bool__" and redraws(sys._getframe(1)):
                return False  # numbers that are out of range; what a parameter starts as is no part of a plan
            if name not in _OF_SEVERAL and (real := self.recorder.constant_value(args[0])) is not None:
                with no_torch_functions(), no_dispatch():
                    return func(real, *args[1:], **kwargs)
            raise Untraceable(VALUE_NEEDED.format(what=_VALUES[name]))
        if func in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy):
            return self._literal(func, args, kwargs)
        if func is torch.Tensor.new_tensor:
            device = CPU if self.recorder.is_cpu(args[0]) else CUDA
            return self._literal(torch.tensor, args[1:], {"dtype": args[0].dtype, "device": device, **kwargs})
        if func in (torch.Tensor.to, torch.Tensor.cuda):
            return self._move(func, args, kwargs)
        if func is torch.Tensor.__deepcopy__ and self.recorder.copies is not None and args[0].device.type == "meta":
            return self.recorder.copy_of(*args)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func in _BY_GRADIENTS:
            args = tuple(map(self._computed_for_nothing, args))
            kwargs = {k: self._computed_for_nothing(v) for k, v in kwargs.items()}
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            with no_torch_functions(), no_dispatch():
                name = torch.empty(0, dtype=args[0].dtype).type()
            return name if self.recorder.is_cpu(args[0]) else name.replace("torch.", "torch.cuda.")
        if func is torch.Tensor.is_inference:
            return torch.is_inference_mode_enabled()
        if func is torch.Tensor.get_device:
            return -1 if self.recorder.is_cpu(args[0]) else 0
        if func is torch.Tensor.data_ptr:
            # host code may test alignment with it; a launch refuses it as an argument
            ref = self.recorder.ref(args[0])
            with no_torch_functions():
                return (1 << FAKE_ADDRESS_BITS) + (ref.storage << 32) + ref.offset * args[0].element_size()
        if kwargs.get("device") is not None and func is not torch.Tensor.to:
            # torch would look for a CUDA driver before it calls any mode
            with self.recorder.factory_on(_named(kwargs["device"])):
                return func(*args, **{**kwargs, "device": META})
        return func(*args, **kwargs)

    def _computed_for_nothing(self, value: Any) -> Any:
        """An operand that autograd knows nothing of, so that the same is called in every mode. A parameter stays one."""
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            return value
        return value if id(value) in self.recorder.parameters else value.detach()

    def _attribute(self, func: Any, args: Any) -> Any:
        owner = func.__self__
        if owner is torch.Tensor.device:
            return CPU if self.recorder.is_cpu(args[0]) else CUDA
        if owner is torch.Tensor.is_cuda:
            return not self.recorder.is_cpu(args[0])
        if owner is torch.Tensor.is_cpu:
            return self.recorder.is_cpu(args[0])
        if owner is torch.Tensor.is_meta:
            return False
        if owner is torch.Tensor.requires_grad and self.recorder.frozen and isinstance(args[0], torch.nn.Parameter):
            return func(*args) and not sys._getframe(2).f_code.co_filename.endswith("candidate.py")
        return func(*args)

    def _literal(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        place = kwargs.pop("device", None)
        device = CPU if place is None else _named(place)
        data = args[0]
        if isinstance(data, torch.Tensor):
            return data.to(device=device, dtype=kwargs.get("dtype"))
        if any(True for _ in tensors_in(data)):
            raise Untraceable(
                VALUE_NEEDED.format(what="a tensor inside torch.tensor([...])") + "; torch.stack keeps it a tensor"
            )
        kwargs.pop("requires_grad", None)
        kwargs.pop("pin_memory", None)
        with no_torch_functions(), no_dispatch():
            real = func(*args, **kwargs)
        return self.recorder.constant(real, CUDA if device.type == "cuda" else CPU)

    def _move(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """`.to(...)` and `.cuda()`: free if the tensor is there already, otherwise a copy."""
        tensor, rest = args[0], list(args[1:])
        wanted: torch.device | None = CUDA if func is torch.Tensor.cuda else None
        if wanted is not None:
            rest, kwargs = [], {}
        if rest and isinstance(rest[0], torch.Tensor):
            wanted = CPU if self.recorder.is_cpu(rest[0]) else CUDA
            rest[0] = rest[0].dtype
        elif rest and (rest[0] is None or (isinstance(rest[0], str | torch.device | int) and not isinstance(rest[0], bool))):
            place = rest.pop(0)
            wanted = _named(place) if place is not None else None
        if rest and rest[0] is None:  # a module's `to` gives no dtype to integers, and none that is not asked for
            rest = [tensor.dtype, *rest[1:]]
        if kwargs.get("device") is not None:
            wanted = _named(kwargs["device"])
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
        if wanted is not None and wanted.type not in ("cuda", "cpu"):
            raise Untraceable(f"there is no {wanted} here: keep tensors on the input's device")
        is_cpu = self.recorder.is_cpu(tensor)
        if wanted is not None and wanted.type == "cpu" and not is_cpu:
            raise Untraceable(VALUE_NEEDED.format(what='.to("cpu")'))
        if rest or kwargs:
            tensor = torch.Tensor.to(tensor, *rest, **kwargs)
        if wanted is not None and wanted.type == "cuda" and is_cpu:
            tensor = tensor.clone()
            self.recorder.place(tensor, CUDA)
        return tensor
