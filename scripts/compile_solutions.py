"""Can worked solutions be launched? Their kernels compiled for a GPU that need not be here: shared memory, and seconds of CPU.

    python scripts/compile_solutions.py --out kernels.json                                     # tests/foreign, all styles
    python scripts/compile_solutions.py --out kernels.json --drawn 60 --precisions tf32        # and Graphs as nano draws them

Kernels are lowered until their shared memory is laid out, which is quick. Those that may take long, because they are much code
for each thread, are compiled to the end: `--work` says how much that is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernrl.errors import UsageError
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.nano.assemble import MalformedReplyError, assemble
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes
from kernrl.tasks.nano.draw.draw_graphs import draw_graph
from kernrl.tasks.nano.listing import words_of
from kernrl.tasks.nano.reply import write_reply
from kernrl.tasks.solutions.from_graph.answer import read_source
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.styles import STYLES, TAUGHT, graphs_of, has_channels, simplified, write_solution
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.devices import arch_number, device_for
from kernrl.verifier.base.verdict import Rejection
from kernrl.verifier.plan.codec import decode
from kernrl.verifier.plan.plan import KernelSource
from kernrl.verifier.trace.reference_spec import spec_of
from kernrl.verifier.trace.tracer import Tracer

FOREIGN = Path(__file__).parents[1] / "tests" / "foreign"
ARCHES = ("sm_90", "sm_80", "sm_89")
SLOW_S = 10.0
"""CPU seconds from which a kernel is reported; a verdict's compiler has 15 for all of them."""
MOST_S = 40
"""CPU seconds after which a kernel is given up."""

_TENSOR = re.compile(r"-> tensor<((?:\d+x)+)|: tensor<((?:\d+x)+)[^<]*$")


@dataclass
class Found:
    """A kernel, and what it takes."""

    task: str
    precision: str
    styles: list[str]
    kernel: str
    constants: dict[str, Any]
    work: int
    """Elements a thread, summed over the kernel's operations."""
    shared: dict[str, int] = field(default_factory=dict)
    cpu_s: float | None = None
    problem: str = ""


def work_of(kernel: KernelSource) -> int:
    """How much code a kernel becomes, roughly: the elements that a thread has of each operation's result."""
    total = 0
    for line in kernel.ttir.splitlines():
        if (m := _TENSOR.search(line)) is not None:
            sides = (m[1] or m[2]).split("x")[:-1]
            total += max(1, math.prod(map(int, sides)) // (32 * kernel.num_warps))
    return total


@dataclass(frozen=True)
class Answers:
    """A task, and the texts of its solutions under a policy."""

    task: Task
    precision: str
    codes: Mapping[str, list[str]]
    """Text → the names of the styles that come to it."""


def answers_of(task: Task, precisions: Sequence[str], wanted: str) -> Iterator[Answers]:
    """Solutions in all styles of these names, as `kernrl tasks` writes them.

    Raises:
        UsageError: The task has no Graph.
    """
    graphs, source = graphs_of(replace(task, input_sets=(InputSet(FULL),))), read_source(task.pytorch_code)
    for precision in precisions:
        simple, codes = simplified(graphs, precision), defaultdict[str, list[str]](list)
        for style in STYLES:
            mine = simple if style.algebra else graphs
            if not re.search(wanted, style.name) or not mine or (style.channels_last and not has_channels(mine[0], style)):
                continue
            with contextlib.suppress(CannotWriteError):
                codes[write_solution(source, mine, style, precision).triton_code].append(style.name)
        yield Answers(task, precision, codes)


def answers_drawn(index: int, precisions: Sequence[str], wanted: str) -> Iterator[Answers]:
    """Solutions of a Graph as nano learns from them: one that is drawn at real sizes."""
    graph = draw_graph(random.Random(f"compile/{index}"))
    graphs = at_distinct_sizes(graph)
    task = Task(id=f"drawn-{index:04d}", pytorch_code=module_of(graph))
    source = read_source(task.pytorch_code)
    for precision in precisions:
        codes = defaultdict[str, list[str]](list)
        for style in TAUGHT:
            if re.search(wanted, style.name) and (not style.channels_last or has_channels(graph, style)):
                with contextlib.suppress(CannotWriteError, MalformedReplyError):
                    reply = write_reply(graphs, style, precision)
                    codes[assemble(source, graph, words_of(graphs), reply)].append(style.name)
        yield Answers(task, precision, codes)


def module_of(graph: Graph) -> str:
    """A module that holds a Graph's parameters and takes its inputs; it computes nothing."""
    held = [
        f"        self.{p.path} = nn.{'Parameter' if p.kind == 'parameter' else 'Buffer'}(torch.empty({list(p.value.shape)}))"
        for p in graph.parameters
        if p.path
    ]
    arguments = [x.value.name for x in graph.inputs]
    inputs = [f"torch.zeros({list(x.value.shape)}, dtype=torch.{x.value.dtype})" for x in graph.inputs]
    return "\n".join(
        [
            *("import torch", "import torch.nn as nn", "", "", "class Model(nn.Module):", "    def __init__(self):"),
            *("        super().__init__()", *held, "", f"    def forward({', '.join(['self', *arguments])}):"),
            *(f"        return {arguments[0]}", "", "", "def get_inputs():", f"    return [{', '.join(inputs)}]"),
            *("", "", "def get_init_inputs():", "    return []", ""),
        ]
    )


@cache
def tracer() -> Tracer:
    """One for each process."""
    return Tracer(1)


def kernels_of(answers: Answers) -> Iterator[tuple[KernelSource | None, Found]]:
    """Every kernel of every solution at the full sizes; None for a solution that cannot be traced."""
    task, precision = answers.task, answers.precision
    spec = spec_of(task, InputSet(FULL), precision, "sm_90")
    for code, styles in answers.codes.items():
        traced = tracer().trace(code, [spec])
        if isinstance(traced, Rejection):
            yield None, Found(task.id, precision, styles, "", {}, 0, problem=traced.reason)
            continue
        for kernel in decode(traced.frames[0]).kernels:
            constants = {**kernel.constexprs, "num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
            yield kernel, Found(task.id, precision, styles, kernel.function, constants, work_of(kernel))


def shared_bytes(kernel: KernelSource, arch: str) -> int:
    """Shared memory of a kernel, from Triton's own passes up to its allocation."""
    import tempfile

    from triton._C.libtriton import ir, nvidia, passes  # pyright: ignore[reportAttributeAccessIssue]
    from triton.backends.nvidia.compiler import get_ptx_version_from_options

    from kernrl.verifier.base import compat

    number = arch_number(arch)
    target = compat.GPUTarget("cuda", number, 32)
    asked = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, "num_ctas": kernel.num_ctas, **kernel.options}
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(kernel.ttir)
        file.flush()
        module, backend, options = compat.parse_ttir(file.name, target, asked)
    module = compat.stages_of(backend, options)["ttgir"](module, compat.metadata_of(target, options))
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    passes.convert.add_scf_to_cf(manager)
    version = get_ptx_version_from_options(options, number)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, number, version)
    manager.run(module, "shared")
    return module.get_int_attr("ttg.shared")


def in_child(act: Any, most_s: int) -> tuple[Any, float]:
    """(what a function returns in a forked process, None where that dies; CPU seconds of it and of what it starts)."""
    read, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1))
        try:
            said = act()
        except BaseException as error:
            said = {"error": f"{type(error).__name__}: {error}"[:300]}
        os.write(write_end, json.dumps(said).encode()[:60_000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, _, usage = os.wait4(pid, 0)
    return json.loads(said) if said else None, usage.ru_utime + usage.ru_stime


def compiled(kernel: KernelSource, arch: str) -> int:
    """Compile to the end; returns the shared memory."""
    from kernrl.verifier.compile.compiler_child import compile_text

    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, "num_ctas": kernel.num_ctas, **kernel.options}
    return compile_text(kernel.ttir, arch, options)[0]["shared_bytes"]


def measured(kernel: KernelSource, row: Found, work: int) -> Found:
    """The row with what a kernel takes."""
    for arch in ARCHES:
        try:
            row.shared[arch] = shared_bytes(kernel, arch)
        except RuntimeError as error:
            row.problem = row.problem or f"{arch}: {error}"[:300]
    if row.work >= work:
        said, row.cpu_s = in_child(lambda: compiled(kernel, ARCHES[0]), MOST_S)
        if not isinstance(said, int) and not row.problem:
            row.problem = said["error"] if said else f"not compiled in {MOST_S} s of CPU"
    return row


@dataclass(frozen=True)
class Job:
    """What one process examines, and how."""

    what: Task | int
    """A task, or the number of a Graph that is drawn."""
    precisions: Sequence[str]
    styles: str
    work: int


def examined(job: Job) -> list[Found]:
    """The kernels of a task, each once."""
    seen: dict[str, Found] = {}
    try:
        how = job.precisions, job.styles
        for answers in answers_drawn(job.what, *how) if isinstance(job.what, int) else answers_of(job.what, *how):
            for kernel, row in kernels_of(answers):
                key = row.problem + str(row.styles) if kernel is None else str((kernel.ttir, row.constants))
                if key in seen:
                    seen[key].styles += [s for s in row.styles if s not in seen[key].styles]
                else:
                    seen[key] = measured(kernel, row, job.work) if kernel else row
    except (UsageError, CannotWriteError):
        pass  # there is no Graph of it
    return list(seen.values())


def faults(row: Found) -> Iterator[str]:
    """What is wrong with a kernel on `ARCHES[0]`."""
    device = device_for(ARCHES[0])
    assert device is not None
    if row.shared.get(ARCHES[0], 0) > device.shared_bytes:
        yield f"{row.shared[ARCHES[0]]} bytes of shared memory"
    if (row.cpu_s or 0.0) > SLOW_S:
        yield f"{row.cpu_s:.1f} s of CPU to compile"
    if row.problem:
        yield row.problem


def report(rows: Sequence[Found]) -> None:
    """Print, for each style, how many of its kernels have which fault."""
    for arch in ARCHES:
        device = device_for(arch)
        assert device is not None
        over = sum(row.shared.get(arch, 0) > device.shared_bytes for row in rows)
        print(f"{arch}: {over} of {len(rows)} kernels exceed {device.shared_bytes} bytes")
    slow = sum((row.cpu_s or 0) > SLOW_S for row in rows)
    print(f"{slow} of {sum(row.cpu_s is not None for row in rows)} compiled take over {SLOW_S:g} s of CPU")
    by_style = defaultdict[str, list[str]](list)
    for row in rows:
        for fault in faults(row):
            for style in row.styles or [""]:
                by_style[style].append(f"{row.task} {row.precision} {row.kernel} {row.constants}: {fault}")
    for style, lines in sorted(by_style.items(), key=lambda pair: -len(pair[1])):
        print(f"\n{style or 'no style'}: {len(lines)}")
        for line in lines[:4]:
            print(f"  {line}")


def main() -> None:
    """Examine, print, and write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=str(FOREIGN), help="modules, or nothing for none")
    parser.add_argument("--only", default="", help="a regular expression for tasks' names")
    parser.add_argument("--styles", default="", help="a regular expression for styles' names")
    parser.add_argument("--drawn", type=int, default=0, help="so many Graphs as nano draws them")
    parser.add_argument("--precisions", default="tf32,bf16")
    parser.add_argument("--work", type=int, default=8192, help="compile to the end what is so much code for a thread")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    tasks = list(load_tasks(options.tasks).tasks) if options.tasks else []
    wanted = [*(task for task in tasks if re.search(options.only, task.id)), *range(options.drawn)]
    jobs = [Job(what, options.precisions.split(","), options.styles, options.work) for what in wanted]
    rows, begun = list[Found](), time.monotonic()
    with get_context("fork").Pool(options.workers) as pool:
        for number, found in enumerate(pool.imap_unordered(examined, jobs), 1):
            rows += found
            print(f"{number}/{len(jobs)} {len(rows)} kernels {time.monotonic() - begun:.0f} s", end="\r", flush=True)
            options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print()
    report(rows)


if __name__ == "__main__":
    main()
