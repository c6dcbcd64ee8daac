"""What `python best.py` does. The text below the line `# --- self-check` is written into every best.py, which needs torch and
triton alone.

It reads `ModelNew` and one more name of that file, `KERNRL`: `reference` (source of the module that is replaced),
`input_sets` (name → constants, those at which the file was judged), `edits` (name → what changes in the source then: first
byte, byte behind the last, number), `full_is_large` (too large to be interpreted) and `precision`.
"""
# ruff: noqa: F821
# pyright: reportUndefinedVariable=false

from __future__ import annotations

# --- self-check


def _reference(name):
    """The replaced module's source, executed at one input set."""
    import linecache
    import sys
    import types

    raw = KERNRL["reference"].encode()
    for start, end, number in reversed(KERNRL["edits"].get(name, ())):
        raw = raw[:start] + number.encode() + raw[end:]
    text = raw.decode()
    module = sys.modules["kernrl_reference"] = types.ModuleType("kernrl_reference")  # dataclasses look for it there
    linecache.cache["<reference>"] = (len(text), None, text.splitlines(keepends=True), "<reference>")
    exec(compile(text, "<reference>", "exec"), module.__dict__)
    return module


def _tensors(item, change):
    """`item` with `change` made to every tensor in it."""
    import torch

    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, (list, tuple)):
        return type(item)(_tensors(part, change) for part in item)
    if isinstance(item, dict):
        return {name: _tensors(part, change) for name, part in item.items()}
    return item


def _leaves(item):
    if isinstance(item, dict):
        item = list(item.values())
    return [leaf for part in item for leaf in _leaves(part)] if isinstance(item, (list, tuple)) else [item]


def _pair(seed, name, device):
    """(reference in float64, reference, ModelNew, inputs) at one input set, all with the same parameters."""
    import copy

    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(KERNRL["precision"], torch.float32)

    def placed(t):
        return t.to(device, dtype) if t.is_floating_point() else t.to(device)

    reference = _reference(name)
    torch.manual_seed(seed)
    arguments = list(in_order(reference.Model, reference.get_init_inputs()))
    with torch.no_grad():  # a weight that hooks compute could not be copied otherwise
        old = reference.Model(*copy.deepcopy(arguments))
    torch.manual_seed(seed + 1)
    inputs = _tensors(list(reference.get_inputs()), placed)
    torch.manual_seed(seed)
    new = ModelNew(*copy.deepcopy(arguments))
    with torch.no_grad():
        for tensor in old.parameters():  # no weights of one and no biases of zero
            if tensor.is_floating_point() and tensor.dim():
                tensor.mul_(1 + 0.2 * torch.rand_like(tensor)).add_(0.05 * torch.rand_like(tensor))
    state = {name: value.clone() for name, value in old.state_dict().items()}
    new.load_state_dict(state, strict=set(state) == set(new.state_dict()))
    old, new = old.to(device), new.to(device)
    if dtype is not torch.float32:
        old, new = old.to(dtype), new.to(dtype)
    new.train(old.training)
    exact = copy.deepcopy(old).double()
    return exact, old, new, inputs


def _rms(x):
    return float(x.double().pow(2).mean().sqrt()) if x.numel() else 0.0


def _exactly(model, inputs):
    """Outputs in float64, also where the reference names float32, as by `x.float()`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    narrow = {torch.float32, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(KERNRL["precision"], torch.float32)}
    wide = lambda t: t.double() if t.dtype in narrow else t  # noqa: E731

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if kwargs.get("dtype") in narrow:
                kwargs["dtype"] = torch.float64
            if not func.is_view and not func._schema.is_mutable:
                return func(*_tensors(args, wide), **{name: _tensors(value, wide) for name, value in kwargs.items()})
            return func(*args, **kwargs)

    with Wide():
        return _leaves(model(*_tensors(inputs, lambda t: t.double() if t.is_floating_point() else t.clone())))


def _problem(seed, name, device):
    """'' where ModelNew agrees with the reference at one input set, else what is wrong."""
    import torch

    exact, old, new, inputs = _pair(seed, name, device)
    clone = lambda t: t.clone()  # noqa: E731
    with torch.no_grad():
        truth = _exactly(exact, inputs)
        theirs, mine = _leaves(old(*_tensors(inputs, clone))), _leaves(new(*_tensors(inputs, clone)))
    if len(mine) != len(theirs):
        return f"{len(mine)} outputs instead of {len(theirs)}"
    for i, (a, b, t) in enumerate(zip(mine, theirs, truth, strict=True)):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return f"output {i} is {a!r} instead of {b!r}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return f"output {i} differs"
            continue
        # three times the error of the reference itself, and some roundings of the output's own scale
        limit = 3 * _rms(b.double() - t) + 8 * (torch.finfo(b.dtype).eps / 2) * _rms(t)
        if KERNRL["precision"] == "tf32":
            limit += 2.0**-11 * _rms(t)
        if not _rms(a.double() - t) <= limit:
            return f"output {i} is off by {_rms(a.double() - t):.3g}, where {limit:.3g} is allowed"
    return ""


def _times(device):
    """Medians of both modules in turns, in milliseconds, each with its inputs out of the cache."""
    import torch
    import triton

    _, old, new, inputs = _pair(0, "full", device)
    ran = []
    with torch.no_grad():
        for model in (old, new, new, old, old, new):
            ran.append((model is new, triton.testing.do_bench(lambda m=model: m(*inputs), return_mode="median")))
    pick = lambda which: sorted(ms for is_new, ms in ran if is_new is which)  # noqa: E731
    return pick(False), pick(True)


def _main():
    """Check this file against the module that it replaces, and time both; exits with 1 where they disagree."""
    import os
    import sys
    import time

    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu and os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"  # triton reads it when it is imported, which has happened
        os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
    device, seed = ("cuda" if on_gpu else "cpu"), int(time.time_ns() % 2**31)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = KERNRL["precision"] == "tf32"
    if not on_gpu:
        print("No GPU here: small sizes are checked in Triton's interpreter, nothing is timed.")
        if KERNRL["precision"] == "bf16":
            print("The interpreter does not round bf16 as a GPU does: nothing can be checked.")
            return 0
    checked = 0
    for name in KERNRL["input_sets"]:
        if not on_gpu and name == "full" and KERNRL["full_is_large"]:
            continue
        problem = _problem(seed + checked, name, device)
        checked += 1
        print(f"{name}: {problem or 'agrees with the reference'}")
        if problem:
            return 1
    if not checked:
        print("Only the full sizes are known, which need a GPU: nothing was checked.")
    if on_gpu:
        old, new = _times(device)
        middle = lambda t: t[len(t) // 2]  # noqa: E731
        print(f"eager {middle(old):.4f} ms, this file {middle(new):.4f} ms, each call launched from Python:", end=" ")
        print(f"{middle(old) / middle(new):.2f}× [{old[0] / new[-1]:.2f}, {old[-1] / new[0]:.2f}]")
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
