"""Sentences about a result: how much faster, by which clock, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kernrl.console import counted
from kernrl.errors import UsageError
from kernrl.optimization.search.trials import Trial
from kernrl.tasks.constants import sizes_in_words, with_tuples
from kernrl.tasks.graph.costs import roofline_s
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.input_sets import states_sets
from kernrl.tasks.solutions.from_graph.calls_by_name import has_name
from kernrl.tasks.task import FULL, Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.verdict import Speedup, Status, Timing, Verdict
from kernrl.verifier.interpreted_sets import ONLY_SET_BYTES

NAMES = {"eager": "eager PyTorch", "compile": "torch.compile"}

LAUNCH_BOUND_US = 20.0
"""A module below this waits for launches, and no speedup of it is counted."""

MOSTLY = 0.9
"""Share of the time from which one kind of work is the reason."""


def speed_words(speed: Speedup, timing: Timing) -> str:
    """`1.43× [1.40, 1.46]`, or `4.15×, modelled`."""
    if timing.kind == "modelled":
        return f"{speed.value:.2f}×, modelled"
    return f"{speed.value:.2f}× [{speed.low:.2f}, {speed.high:.2f}]{'' if speed.significant else ', within the noise'}"


def against(verdict: Verdict) -> list[str]:
    """One line for each baseline."""
    timing = verdict.timing
    if timing is None:
        return ["Not timed."]
    lines = []
    for name, speed in timing.speedups_x.items():
        times = f"{timing.baseline_us[name]:.1f} to {timing.candidate_us:.1f} µs"
        by = "MODELLED: by the roofline of the" if timing.kind == "modelled" else "measured on the"
        lines.append(f"{speed_words(speed, timing)}, the speed of {NAMES.get(name, name)} ({times}; {by} {timing.device}).")
    return lines


def as_judged(task: Task, verdict: Verdict) -> Task:
    """The task with the input sets that a verdict is about, which may be those of `Task.same_numbers`."""
    if not verdict.plan.get("sets"):
        return task
    constants = {name: with_tuples(values) for name, values in verdict.plan["sets"].items()}
    sets = tuple(replace(s, constants=constants.get(s.name, s.constants)) for s in task.input_sets)
    return replace(task, input_sets=sets)


def set_words(task: Task, name: str) -> str:
    """`small (BATCH=2, WIDTH=32)`."""
    found = task.input_set(name)
    if name == FULL or found is None or not found.constants:
        return "its own sizes" if name == FULL else name
    return f"{name} ({sizes_in_words(task.pytorch_code, found.constants)})"


def won(trial: Trial, task: Task) -> str:
    """The sentence of a win."""
    timing = trial.verdict.timing
    assert timing
    task = as_judged(task, trial.verdict)
    parts = [f"{_times(speed, timing)} {NAMES.get(name, name)}" for name, speed in timing.speedups_x.items()]
    sets = " and ".join(dict.fromkeys(set_words(task, r["input_set"]) for r in trial.verdict.errors))
    clock = f"by the roofline model of the {timing.device} (nothing was measured)"
    where = clock if timing.kind == "modelled" else f"measured on the {timing.device}"
    slower = [n for n, s in timing.speedups_x.items() if s.value < 1.0 and (s.significant or timing.kind == "modelled")]
    better = " Use torch.compile instead: it is faster here." if "compile" in slower else ""
    return (
        f"{task.id}: {' and '.join(parts)}, {where}; right on {counted(len(trial.verdict.errors), 'input')} at {sets}.{better}"
    )


def _times(speed: Speedup, timing: Timing) -> str:
    figure = speed_words(speed, timing).removesuffix(", modelled")
    return f"{figure} the speed of" if not figure.endswith("noise") else f"{figure}, against"


def not_won(
    task: Task, best: Sequence[Trial], trials: Sequence[Trial], graph: Graph | None, device: Device, *, ask: bool = True,
    model: bool = False, interrupted: bool = False,
) -> str:  # fmt: skip
    """The sentence where nothing is faster, with the reason.

    Args:
        ask: Whether a model can be asked, and `--model` says so.
        model: Whether one was asked.
        interrupted: Whether the search was.
    """
    if not trials and interrupted:
        return f"{task.id}: the search was interrupted before a candidate was judged."
    if not trials:
        unknown = f" ({', '.join(sorted({n.op for n in graph.unknown}))})" if graph and graph.unknown else ""
        asked = ", and no model was asked: name one with --model" if ask else ""
        rest = ", and the model gave no candidate" if model else asked
        return f"{task.id}: no rule writes a solution of it{unknown}{rest}."
    if not best:
        counts = Counter(str(t.verdict.status) for t in trials)
        shown = ", ".join(f"{n} {status}" for status, n in counts.most_common())
        status = counts.most_common(1)[0][0]
        reason = next(t.verdict.reason for t in trials if t.verdict.status == status)
        if failed(trials):
            return f"{task.id}: the verifier failed on every one of {counted(len(trials), 'candidate')}: {reason}"
        if status == Status.NEEDS_GPU:
            return f"{task.id}: none of {counted(len(trials), 'candidate')} can be judged without a GPU ({reason})"
        return f"{task.id}: none of {counted(len(trials), 'candidate')} is correct ({shown}). {reason}"
    timing = best[0].verdict.timing
    assert timing
    baseline = next(iter(timing.speedups_x))
    figure = speed_words(timing.speedups_x[baseline], timing)
    of_all = counted(len(trials), "candidate")
    return (
        f"{task.id}: nothing is faster than {NAMES.get(baseline, baseline)} beyond "
        f"{'what the model can tell' if timing.kind == 'modelled' else 'the noise'}; the best of {of_all} has "
        f"{figure}. {reason_of(best[0].verdict, graph, device, ask=ask)}"
    )


def failed(trials: Sequence[Trial]) -> bool:
    """Whether the verifier could say nothing of any candidate."""
    return bool(trials) and all(trial.verdict.status is Status.INFRA_ERROR for trial in trials)


def reason_of(verdict: Verdict, graph: Graph | None, device: Device, *, ask: bool = True) -> str:
    """Why a module cannot be made faster, as far as that is known."""
    timing, nodes = verdict.timing, verdict.plan.get("reference", {}).get("nodes", ())
    assert timing
    us = next(iter(timing.baseline_us.values()))
    total = sum(node["us"] for node in nodes) or 1.0
    library = [node for node in nodes if node["kind"] == "library"]
    share = sum(node["us"] for node in library) / total
    if library and share >= MOSTLY:
        what = "one library call" if len(library) == 1 else f"{len(library)} library calls"
        names = ", ".join(dict.fromkeys(node["name"].removeprefix("aten.").partition(".")[0] for node in library))
        return f"{share:.0%} of the module's time is {what} ({names}), which the candidates use as well."
    if us < LAUNCH_BOUND_US:
        return (
            f"The module takes {us:.1f} µs, where launching decides: nothing below {LAUNCH_BOUND_US:g} µs is counted as faster."
        )
    if graph is not None:
        floor_us = roofline_s(graph, device.rates(verdict.precision))[1] * 1e6
        if floor_us / us >= MOSTLY:
            share = min(floor_us / us, 1)
            return f"The module runs at {share:.0%} of the floor of {floor_us:.1f} µs that its data and products need."
        may = ": a model (--model) may find what the rules do not" if ask else ""
        return f"The module's floor is {floor_us:.1f} µs, and it takes {us:.1f} µs{may}."
    return "A model (--model) may find what was not tried." if ask else ""


def require_usable(task: Task, graph: Graph) -> None:
    """Refuse what nobody could optimise. Raises UsageError."""
    empty = next((i for i in graph.inputs if i.value.numel == 0), None)
    if empty is not None:
        name = empty.argument or ".".join(map(str, empty.place))
        raise UsageError(f"{task.id}: the input {name} has the shape {list(empty.value.shape)}, without elements; give others.")


def require_rules(task: Task, graph: Graph, *, ask: bool) -> None:
    """Refuse a module with an op that rules can neither write nor leave to the library. Raises UsageError.

    Args:
        ask: As `not_won`.
    """
    unwritten = sorted({node.op.split(".")[1] for node in graph.unknown if not has_name(node)})
    if unwritten:
        remedy = "; --model names a model to ask" if ask else ""
        raise UsageError(f"{task.id}: no rule writes {' or '.join(unwritten)}, so there is nothing to try{remedy}.")


def require_interpretable(task: Task, graph: Graph | None) -> None:
    """Refuse, where there is no GPU, what is known at its own sizes alone and is too large for the interpreter.

    Raises:
        UsageError: As said; after a search, every candidate would have been answered so.
    """
    if graph is None or states_sets(task):
        return
    held = [*(i.value for i in graph.inputs), *(p.value for p in graph.parameters)]
    if sum(value.nbytes for value in held) > ONLY_SET_BYTES:
        raise UsageError(
            f"{task.id}: too large to be judged without a GPU, and no smaller sizes can be derived: search on a machine with "
            "a GPU, or give the sizes names at the top of the file (ROWS = 8192)."
        )
