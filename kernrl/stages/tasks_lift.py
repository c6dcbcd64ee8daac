"""`kernrl tasks lift`: what a task computes, as a listing, a table of costs and a drawing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kernrl import console
from kernrl.config import LiftConfig
from kernrl.console import Lines, Result
from kernrl.errors import UsageError
from kernrl.files import DRAWN, new_folder, replace_file, require_new_folder, require_ours
from kernrl.stages.tasks import load, table_of
from kernrl.tasks.graph.costs import Kernel, Rates, bytes_text, flops_text, kernels, node_bytes, node_flops, roofline_s
from kernrl.tasks.graph.drawing import draw
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.task import Solution, Task
from kernrl.tasks.task_check import in_child
from kernrl.verifier.base.devices import ARCHITECTURES, device_for


def run(config: LiftConfig) -> Result:
    """One task: its Graph. Several: which of them lift, and why the others do not."""
    tasks = load(config).tasks
    if len(tasks) == 1:
        return _one(tasks[0], config)
    for flag, path in (("--svg", config.svg), ("--solutions", config.solutions)):
        if path:
            raise UsageError(f"{flag}: {config.source} holds {len(tasks)} tasks and it takes one; pick it with SOURCE::ID.")
    with console.progress() as bar, ThreadPoolExecutor(2) as pool:
        lifts = pool.map(lambda task: _lifted(task, config.timeout_s), tasks)
        results = list(bar.track(lifts, total=len(tasks), description="references"))
    table, rows = table_of("task", "ops", "kernels", "composition, or why not"), []
    for task, result in zip(tasks, results, strict=True):
        if isinstance(result, str):
            table.add_row(task.id, "-", "-", result.removeprefix(f"{task.id}: "))
            rows.append({"id": task.id, "lifts": False, "reason": result})
            continue
        unknown = "".join(f"; unknown: {node.op}{_at(node.line)}" for node in result.unknown)
        table.add_row(task.id, str(len(result.nodes)), str(len(kernels(result))), " → ".join(result.composition) + unknown)
        rows.append({"id": task.id, "lifts": True} | _summary(result))
    lifted = sum(row["lifts"] for row in rows)
    return Result({"tasks": len(tasks), "lifted": lifted, "graphs": rows}, Group(table, Text(f"{lifted} of {len(tasks)} lift")))


def _one(task: Task, config: LiftConfig) -> Result:
    if config.svg:
        require_ours(config.svg, DRAWN, "--svg")
    if config.solutions:
        require_new_folder(config.solutions, "--solutions")
    with console.waiting(f"lifting {task.id}"):
        graph: Graph = in_child(_lift, task, config.timeout_s)
    rates = _rates(config.target, task.precision)
    fused = kernels(graph)
    apart_s, together_s = roofline_s(graph, rates)
    if config.svg:
        replace_file(config.svg, draw(graph, task.id))
    written = _write_solutions(task, config.solutions, config.timeout_s, config.algebra) if config.solutions else []
    costs = [{"bytes": node_bytes(graph, n), "flops": node_flops(graph, n), "kernel": _number(fused, n)} for n in graph.nodes]
    table = table_of("value", "op", "bytes", "FLOPs", "kernel", "line")
    for node, cost in zip(graph.nodes, costs, strict=True):
        moved, done = (bytes_text(cost["bytes"]), flops_text(cost["flops"])) if node.kind != "view" else ("", "a view")
        known = node.op if node.kind != "unknown" else f"{node.op} (unknown)"
        table.add_row(node.value.name, known, moved, done, str(cost["kernel"]), str(node.line or ""))
    fusion = [f"kernel {i}: {k}, {bytes_text(k.nbytes)}" for i, k in enumerate(fused, start=1)]
    moved = f"{bytes_text(sum(c['bytes'] for c in costs))} op by op, {bytes_text(sum(k.nbytes for k in fused))} fused"
    limits = f"least time on the {rates.name}: {_us(apart_s)} op by op, {_us(together_s)} fused"
    parts: list[RenderableType] = [Text(graph.listing(), no_wrap=True, overflow="ignore"), Text(), table, Text()]
    parts += [Text(line) for line in [*fusion, f"moved: {moved}", limits, *_unknown_lines(graph)]]
    if config.svg:
        parts.append(Lines(f"drawn in {config.svg}"))
    if written:
        parts.append(Text(f"{len(written)} worked solutions in {config.solutions}: {', '.join(written)}"))
    data = {
        "id": task.id,
        **_summary(graph),
        "graph": graph.to_json(),
        "nodes": costs,
        "kernels": [{"ops": [n.op for n in k.nodes], "bytes": k.nbytes, "flops": k.flops + k.product_flops} for k in fused],
        "roofline": {"device": rates.name, "us": apart_s * 1e6, "fused_us": together_s * 1e6},
        "solutions": written,
    }
    return Result(data, Group(*parts))


def _write_solutions(task: Task, folder: Path, timeout_s: float, algebra: bool) -> list[str]:
    """A file for each worked solution; returns their styles."""
    new_folder(folder, "--solutions")
    solutions: tuple[Solution, ...] = in_child(partial(_solve, algebra=algebra), task, timeout_s)
    if not solutions:
        raise UsageError(f"--solutions: there is no rule that writes a solution of {task.id}; a model may.")
    for solution in solutions:
        replace_file(folder / f"{solution.style}.py", solution.triton_code)
    return [solution.style for solution in solutions]


def _solve(task: Task, *, algebra: bool) -> tuple[Solution, ...]:
    from kernrl.tasks.graph.input_sets import with_input_sets
    from kernrl.tasks.solutions.from_graph.styles import write_solutions

    return write_solutions(with_input_sets(task), algebra=algebra)


def _summary(graph: Graph) -> dict[str, Any]:
    unknown = [{"op": node.op, "line": node.line} for node in graph.unknown]
    return {"composition": list(graph.composition), "fingerprint": graph.fingerprint, "unknown": unknown}


def _us(seconds: float) -> str:
    us = seconds * 1e6
    return f"{us:.4g} µs" if us >= 0.001 else "under 0.001 µs"


def _unknown_lines(graph: Graph) -> list[str]:
    from kernrl.tasks.solutions.from_graph.calls_by_name import has_name

    ends = {True: "worked solutions leave it to the library", False: "it is listed and split, and has no worked solution"}
    return [f"unknown: {node.op}{_at(node.line)}; {ends[has_name(node)]}" for node in graph.unknown]


def _number(fused: list[Kernel], node: object) -> int:
    return next(i for i, kernel in enumerate(fused, start=1) if node in kernel.nodes)


def _at(line: int) -> str:
    return f" at line {line}" if line else ""


def _lift(task: Task) -> Graph:
    from kernrl.tasks.graph.lift import lift

    return lift(task)


def _lifted(task: Task, timeout_s: float) -> Graph | str:
    try:
        return in_child(_lift, task, timeout_s)
    except UsageError as error:
        return str(error)


def _rates(target: str, precision: str) -> Rates:
    device = device_for(target)
    if device is None:
        raise UsageError(f"--target {target}: no such GPU is known; name one such as H200, or {', '.join(ARCHITECTURES)}.")
    tflops = {"fp32": device.fp32_tflops, "tf32": device.tf32_tflops}.get(precision, device.half_tflops)
    return Rates(device.name, device.bandwidth_gb_s * 1e9, tflops * 1e12, device.fp32_tflops * 1e12)
