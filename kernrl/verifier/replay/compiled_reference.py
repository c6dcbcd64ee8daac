"""A reference under `torch.compile`, compiled in a step of its own that runs nothing on the GPU."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kernrl.verifier.base.compat import before_gpu_benchmarks, hash_versions, inductor_backend

MODES: dict[str, str | None] = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
"""Baseline → mode of `torch.compile`; every baseline is captured as a CUDA graph."""


_COMPILER = (
    "torch._inductor.compile_fx",
    *(f"torch._inductor.fx_passes.{name}" for name in ("fuse_attention", "mkldnn_fusion", "pad_mm", "quantization")),
    *(f"torch._inductor.codegen.{name}" for name in ("cuda_combined_scheduling", "memory_planning")),
    "torch._inductor.compiler_bisector",
    "torch.distributed.tensor.experimental",
    "sympy.combinatorics",
)
"""What the first compilation imports; a release of torch may lack some of it."""


def import_compiler() -> None:
    """Have this process import Inductor and find what its caches' keys hold of versions, so that its forks need not: two
    or three seconds. Uses no GPU, but importing asks whether there is one."""
    with contextlib.suppress(Exception):  # where Inductor does not work, a baseline says why
        for name in _COMPILER:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        hash_versions()


def warm_up(device: str = "cuda") -> None:
    """Have this process import, unless it has, and build what Inductor needs at its first compilation."""
    with contextlib.suppress(Exception), torch.no_grad():  # where Inductor does not work, a baseline says why
        # empty, since a kernel that fills it would disturb what others time
        CompiledReference(nn.ReLU(), "compile").compile([torch.empty(32, device=device)])
    torch.compiler.reset()


class _WantsGpu(BaseException):
    """The step has reached what it leaves out. No Exception, which a reference or a compiler may catch."""


class _Step:
    """Whether a reference is being compiled, and must not run."""

    def __init__(self) -> None:
        self.compiling = False

    def refuse(self) -> None:
        if self.compiling:
            raise _WantsGpu


class CompiledReference:
    """Called as the module is. `compile` may come before the first call; without it, that call compiles."""

    def __init__(self, module: nn.Module, baseline: str):
        # by default Inductor starts a process a core: here a dozen processes compile, one kernel after another each
        torch._inductor.config.compile_threads = 1  # pyright: ignore[reportAttributeAccessIssue]
        inductor, self._step = inductor_backend(MODES[baseline]), (step := _Step())

        # Dynamo keeps a backend for as long as the process lives: one that knew `self` would keep the module's parameters
        def backend(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
            run = inductor(graph, examples)

            def unless_compiling(*arguments: Any) -> Any:
                step.refuse()
                return run(*arguments)

            return unless_compiling

        self._module: Any = torch.compile(module, dynamic=False, backend=backend)

    def __call__(self, *arguments: Any) -> Any:
        return self._module(*arguments)

    def compile(self, arguments: Sequence[Any]) -> None:
        """Compile for these arguments, up to where something would run on the GPU: the code itself, or a choice that Inductor
        makes by measuring. The first call does the rest."""
        self._step.compiling = True
        try:
            with before_gpu_benchmarks(self._step.refuse):
                self._module(*arguments)
        except _WantsGpu:
            pass
        finally:
            self._step.compiling = False
