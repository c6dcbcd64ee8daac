"""Run a task's reference once, on the CPU, where it can do no harm: does it teach anything?

A reference that raises, or whose output is constant or NaN, would reward any candidate or none. A task that states no
small set is run at a derived one.
"""

from __future__ import annotations

import copy
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kernrl.errors import UsageError
from kernrl.signals import blocked_interrupts
from kernrl.tasks.task import RAGGED, SMALL, InputSet, Task, load_reference
from kernrl.tasks.worker_pool import apart_from_main


def check_task(task: Task, timeout_s: float = 60.0, cache_dir: Path | None = None) -> Task:
    """Run the reference on two fresh inputs, at the smallest input set, in a child process; at others that are small, once.

    Args:
        cache_dir: Where derived input sets are kept by source; nothing is kept where it is None.

    Returns:
        The task with its input sets, derived where it states none.

    Raises:
        UsageError: It raises, dies, takes longer than `timeout_s`, or gives an output that is not a finite tensor
            which depends on the inputs.
    """
    return in_child(partial(_check, cache_dir=cache_dir), task, timeout_s)


def in_child(work: Callable[[Task], Any], task: Task, timeout_s: float) -> Any:
    """What `work(task)` gives, in a child process, where a reference can do no harm.

    Args:
        work: A function of one task, made of functions of a module's top level: it is pickled.

    Raises:
        UsageError: It raises, dies or takes longer than `timeout_s`.
    """
    # a server that has torch loaded forks the children: a check costs milliseconds, not an import of torch
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "kernrl.tasks.graph.input_sets"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(work, task, sender), daemon=True)
    with blocked_interrupts(), apart_from_main():
        child.start()
    sender.close()
    try:
        slow = f"{task.id}: the reference does not finish in {timeout_s:g} s on the CPU."
        result, problem = receiver.recv() if receiver.poll(timeout_s) else (None, slow)
    except EOFError:
        child.join()
        result, problem = None, f"{task.id}: the reference kills its process (exit code {child.exitcode})."
    finally:
        child.kill()
        child.join()
        receiver.close()
    if problem:
        raise UsageError(problem)
    return result


def _run(work: Callable[[Task], Any], task: Task, sender: Connection) -> None:
    sys.stdout = sys.stderr  # a reference that prints must not mix with the command's data
    result, problem = None, ""
    try:
        result = work(task)
    except UsageError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{task.id}: the reference raises {type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}."
        if "CUDA" in problem or "NVIDIA" in problem:
            problem += " References are checked on the CPU. Name no device: kernrl moves inputs and parameters itself."
    sender.send((result, problem))


def _check(task: Task, cache_dir: Path | None) -> Task:
    import torch

    from kernrl.tasks.graph.input_sets import with_input_sets

    task = with_input_sets(task, cache_dir)
    torch.set_num_threads(1)
    reference = load_reference(task, _smallest(task))
    torch.manual_seed(0)
    model = reference.Model(*reference.get_init_inputs())
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        inputs = list(reference.get_inputs())
        with torch.no_grad():
            outputs.append(model(*copy.deepcopy(inputs)))
    with torch.no_grad():
        again = model(*inputs)  # from where the seed has come to
    if problem := _problem(*outputs) or _chance(outputs[1], again):
        raise UsageError(f"{task.id}: the reference {problem}.")
    for input_set in (s for s in task.input_sets if s.name in (SMALL, RAGGED) and s != _smallest(task)):
        reference = load_reference(task, input_set)
        try:
            with torch.no_grad():
                reference.Model(*reference.get_init_inputs())(*reference.get_inputs())
        except Exception as error:
            sizes = f"the {'derived ' * input_set.derived}{input_set.name} sizes"
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
            raise UsageError(f"{task.id}: at {sizes}, the reference raises {said}.") from error
    return task


def _problem(*outputs: Any) -> str:
    """Why two outputs teach nothing; the end of the sentence "the reference ...", or ""."""
    import torch
    from torch.utils._pytree import tree_leaves

    first, second = map(tree_leaves, outputs)
    kind = type(outputs[0]).__name__
    if others := [type(out).__name__ for out in first if not isinstance(out, torch.Tensor)]:
        what = kind if first[0] is outputs[0] else f"{kind} that holds a {others[0]}"
        return f"returns a {what}, where a tensor is wanted, or a tuple, list or dict of tensors"
    if not first:
        return f"returns an empty {kind}"
    for one, other in zip(first, second, strict=True):
        if one.numel() == 0:
            return "returns an empty tensor"
        if not torch.isfinite(one).all():
            return "returns NaN or infinity"
        if torch.equal(one, other) or (one.numel() > 1 and bool((one == one.flatten()[0]).all())):
            return "returns the same value whatever its inputs are"
    return ""


def _chance(one: Any, other: Any) -> str:
    """As `_problem`, where two answers to the same inputs differ by more than rounding."""
    import torch
    from torch.utils._pytree import tree_leaves

    pairs = [(a.double(), b.double()) for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True)]
    if all(a.shape == b.shape and torch.allclose(a, b, 1e-3, 1e-3 * float(a.abs().mean())) for a, b in pairs):
        return ""
    return "gives another answer to the same inputs: draw random numbers in get_inputs, or call eval() in the constructor"


def _smallest(task: Task) -> InputSet | None:
    return task.input_set(SMALL) or task.input_set(RAGGED)
