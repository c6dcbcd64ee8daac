"""Calls into a process of its own in which Triton interprets kernels: that has to be chosen before triton is imported.

The process takes four CPU seconds to start, so it is kept and answers one request after another, a line of JSON each.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support import ROOT, TESTS


@functools.cache
def _process() -> subprocess.Popen[str]:
    paths = os.pathsep.join(map(str, (ROOT, TESTS)))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "support.interpreted"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # the end of its input is its end
    return process


def ask(worker: str, requests: Sequence[Any]) -> Iterator[Any]:
    """`answer(request, folder)` of tests/support/<worker>.py for each request, which are JSON, as the answers are."""
    for request in requests:
        try:
            answer, failure = _answered(_process(), [worker, request])
        except BaseException:  # such as a test's time limit: the answer must not be taken for the next one's
            _process().kill()
            _process.cache_clear()
            raise
        assert not failure, failure
        yield answer


def _answered(process: subprocess.Popen[str], request: list[Any]) -> tuple[Any, str]:
    """The answer, or why there is none."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, f"the interpreting process ended with {process.wait()}"
    return json.loads(line)


def spare_the_interpreter() -> None:
    """Have Triton's interpreter do once what it does again and again, which takes a large part of its time."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    # no offset of tensors this small overflows
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None

    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set[int]()

    def patch_once(function: Any) -> Any:
        """What a launch has replaced for one module stays until it ends: calls of device functions find nothing more."""
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        return patch(function)

    def begin(executor: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(executor, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, begin
    find = interpreter._get_np_dtype
    of_number = functools.cache(find)
    interpreter._get_np_dtype = lambda kind: (find if kind.scalar.is_ptr() else of_number)(kind.scalar)
    keep_shapes()


def keep_shapes() -> None:
    """Every type and every tensor of one shape has the same object for it, which is checked and written out once."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    check, broadcast = core.block_type.__init__, TritonSemantic.broadcast_impl_value
    scalar = core.tuple([]), core.constexpr(1)
    kept: dict[tuple[int, ...], Any] = {}

    def made(shape: Any) -> Any:
        """The shape of a type, its text, and the shape and the size of a tensor."""
        sizes = tuple(int(getattr(size, "value", size)) for size in shape)
        if sizes not in kept:
            block: Any = object.__new__(core.block_type)
            check(block, core.int1, list(sizes))
            shape_of_tensors = core.tuple([core.constexpr(size) for size in sizes])
            kept[sizes] = block.shape.kept = block.shape, str(block.shape), shape_of_tensors, core.constexpr(block.numel)
        return kept[sizes]

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.shape, text, _, numel = getattr(shape, "__dict__", {}).get("kept") or made(shape)
        self.numel, self.name = numel.value, f"<{text}, {element_ty}>"

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.shape.kept[2:] if type.is_block() else scalar

    def broadcast_unlike(self: Any, lhs: Any, rhs: Any) -> Any:
        alike = lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = init_type, init_tensor
    TritonSemantic.broadcast_impl_value = broadcast_unlike


def main() -> None:
    """Answer every request, until there are no more."""
    import torch

    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a solution prints is no answer
    torch.set_num_threads(1)
    # torch.empty then hands out NaN: an element that no program writes cannot be right by luck
    torch.use_deterministic_algorithms(True)
    spare_the_interpreter()
    warnings.filterwarnings("ignore")
    for line in sys.stdin:
        worker, request = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            try:
                reply = importlib.import_module(f"support.{worker}").answer(request, Path(folder)), ""
            except Exception:
                reply = None, traceback.format_exc()[-2000:]
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
