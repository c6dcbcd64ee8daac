"""`kernrl.optimize` and `kernrl.explain`: a module or a model in Python, faster where a part of it can be."""

from __future__ import annotations

import copy
import hashlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import nn

from kernrl.config import VerifierConfig
from kernrl.config.optimize import LEAST_BUDGET_S
from kernrl.errors import UsageError
from kernrl.files import new_folder
from kernrl.optimization.models.agreement import computed
from kernrl.optimization.models.submodules import Part, Parts, find_parts, parts_below, weight, without_remedy
from kernrl.optimization.models.swap import swap
from kernrl.optimization.models.whole_model import PartReport, settle
from kernrl.optimization.module_task import Inputs, arguments_of, precision_of, require_module
from kernrl.optimization.one_task import Settings, optimize_task
from kernrl.optimization.search.budget import WRITE_SHARE, Budget, TooSmallBudgetError
from kernrl.optimization.search.judging import Judges, tasks_at_once
from kernrl.tasks.graph.costs import Rates
from kernrl.tasks.graph.writing.plain import task_of_graph
from kernrl.tasks.solutions.run_solutions import load_module
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.verifier import HardenedVerifier

log = logging.getLogger(__name__)

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

PART_S, LEAST_PART_S = 20.0, 5.0
"""What a part gets where there is not enough for all; and with less than that none is searched."""

READ_SHARE = 0.4
"""Of the budget, for finding the parts: what was not reached then is left as it is."""

SETTLE_SHARE = 0.12
"""Of the budget, for timing the whole model with and without each part that was swapped in."""


@dataclass(frozen=True)
class _Searched:
    """What the search for a part came to."""

    sentence: str
    winner: Any = None
    """The module of what is faster."""
    speedups_x: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """What was done to a model; its `kernrl_report`."""

    parts: list[PartReport]
    left: list[tuple[str, str]]
    """(path, why not) of what was left as it is."""
    clock: str
    """`measured` or `modelled`."""
    checked: str
    """How the whole was compared with the original."""
    folder: Path
    """What was tried, a folder a part."""

    def __str__(self) -> str:
        lines = [f"{'swapped' if p.swapped else 'kept'}: {p.sentence}" for p in self.parts]
        lines += [f"kept: {path or 'the model'}: {why}" for path, why in self.left]
        return "\n".join([*lines, self.checked])


def optimize(
    module: nn.Module,
    example_inputs: Inputs,
    budget_s: float = 120.0,
    precision: Precision | None = None,
    *,
    candidates: int = 64,
    algebra: bool = True,
    baseline: Sequence[Literal["eager", "compile"]] = ("eager", "compile"),
    output: Path | str | None = None,
    verifier: VerifierConfig | None = None,
) -> nn.Module:
    """A copy of a module that runs faster where a part of it can, for inference.

    The largest submodules that lift are found, equal ones once; each is searched like `kernrl optimize` does, and what is
    faster beyond noise is swapped in; of one that is not, the parts inside are searched. Ctrl-C ends the search, and what was
    found until then is used. The whole is then compared with the original on fresh inputs, and timed on the example: a part
    with which it differs, or is slower as it is called, is taken back. The copy shares the
    original's parameters, its `state_dict` has the same keys and values, and `torch.compile` takes it. A swapped part runs its
    own forward for tensors on a CPU and for shapes other than those of the example. Whichever forward it runs, `backward`
    through it and training mode raise RuntimeError. `copy.kernrl_report` says what was done.

    Args:
        example_inputs: A tensor, the positional arguments of `forward`, or all arguments by name; on the module's device.
        budget_s: Seconds for all parts together, 20 or more.
        precision: Policy under which parts are judged and timed; by the module's dtype if not given.
        candidates: Most that are tried for a part.
        algebra: Try worked solutions too that do fewer operations than a part asks for.
        output: New folder for what was tried; a temporary one if not given.

    Returns:
        A module in eval mode. Without a GPU, times are modelled, and the whole cannot be compared: a warning says so.

    Raises:
        UsageError: This is no module; the inputs do not fit, need gradients, have no elements, or lie on another device; the
            budget is too small; a precision or baseline does not exist; `output` has something in it.
    """
    if budget_s < LEAST_BUDGET_S:
        raise UsageError(
            f"budget_s: {budget_s:g} s is too small a budget to judge first candidates in; give {LEAST_BUDGET_S:g} or more."
        )
    if candidates < 1:
        raise UsageError(f"candidates: {candidates} leaves nothing to try; give 1 or more.")
    budget = Budget(budget_s)
    made = shared_copy(module)
    arguments, named = arguments_of(made, example_inputs)
    policy = precision or precision_of(made, (arguments, named))
    settings = _settings(verifier or VerifierConfig(), tuple(baseline), policy)
    of_part = Settings(candidates, may_ask=False, algebra=algebra)
    parts = find_parts(made, arguments, budget.part(READ_SHARE), named)
    folder = Path(output) if output else Path(tempfile.mkdtemp(prefix="kernrl-optimize-"))
    new_folder(folder, "output")
    with HardenedVerifier(settings) as hardened, Judges(hardened) as judges:
        # the whole model is compared at the end, and the verifier's processes are ended
        search = budget.part(1 - WRITE_SHARE - SETTLE_SHARE)
        if parts.found:
            search.within("starting the verifier", hardened.evaluator.start)
        clock = "measured" if hardened.evaluator.gpus else "modelled"
        reports, left = _search_parts(made, parts, judges, of_part, folder, policy, search)
    checked = settle(module, made, (arguments, named), policy, reports, budget)
    report = Report(reports, left, clock, checked, folder)
    if clock == "modelled":
        warnings.warn(
            "kernrl.optimize: there is no GPU, so times are modelled; on a CPU every part runs as before.", stacklevel=2
        )
    log.info("%s", report)
    made.__dict__["kernrl_report"] = report
    return made


def _search_parts(
    made: nn.Module, parts: Parts, judges: Judges, of_part: Settings, folder: Path, policy: str, search: Budget
) -> tuple[list[PartReport], list[tuple[str, str]]]:
    """Search the parts, several side by side, and swap in what wins; of one that does not, the parts inside are next."""
    at_once = tasks_at_once(judges.verifier)
    settings = replace(of_part, tasks_at_once=at_once)
    waiting, left, reports = list(parts.found), list(parts.left), list[PartReport]()
    running: dict[Future[_Searched], Part] = {}
    with ThreadPoolExecutor(at_once, thread_name_prefix="part") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    # the most costly come first: where there is not enough for all, they get it
                    share = min(1.0, at_once / (len(waiting) + len(running)))
                    seconds = max(share * search.left_s, min(PART_S, search.left_s))
                    place = folder / f"part-{len(reports) + len(running)}"
                    place.mkdir(exist_ok=True)
                    part = waiting.pop(0)
                    job = pool.submit(_search_part, made, part, judges, settings, place, policy, search.now(seconds))
                    running[job] = part
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    tried = _swapped_in(made, running[future], future.result())
                    part = running.pop(future)
                    reports.append(tried)
                    if not tried.swapped and search.left_s > LEAST_PART_S:
                        below = parts_below(made, part, parts, search)
                        waiting = sorted([*waiting, *below.found], key=weight, reverse=True)
                        left += below.left
        except KeyboardInterrupt:
            search.stop()
            left += [(p.paths[0], "the search was interrupted") for p in (*running.values(), *waiting)]
    return reports, left


def _settings(verifier: VerifierConfig, baseline: Sequence[str], precision: str) -> VerifierConfig:
    """The verifier's settings with these. Raises UsageError for values that there are not."""
    given = verifier.model_dump(exclude_unset=True) | {"baseline": baseline, "precision": precision}
    try:
        return type(verifier).model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['input']!r} is not one that there is: {first['msg']}.") from None


def shared_copy(module: nn.Module) -> nn.Module:
    """The module's structure anew, its tensors shared, in eval mode."""
    require_module(module)
    shared: dict[int, Any] = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared | computed(module)).eval()


def _search_part(
    model: nn.Module, part: Part, judges: Judges, settings: Settings, place: Path, precision: str, budget: Budget
) -> _Searched:
    """Search for one part. Raises KeyboardInterrupt where that was interrupted."""
    if budget.seconds < LEAST_PART_S:
        return _Searched(f"{part}: the budget ended before it.")
    first = model.get_submodule(part.paths[0])
    tensors = {**dict(first.named_parameters()), **dict(first.named_buffers())}
    try:
        task = task_of_graph(part.graph, f"{part.kind}-{place.name}", tensors, precision)
        settings = replace(settings, module=f"{part} of {type(model).__name__}" if part.paths[0] else part.kind)
        found = optimize_task(task, judges, settings, place, budget)
    except TooSmallBudgetError:
        return _Searched(f"{part}: the budget ended before a candidate of it was judged.")
    except UsageError as error:
        return _Searched(without_remedy(str(error)))
    if found.interrupted:
        raise KeyboardInterrupt
    sentence = f"{part}: {found.results['sentence'].partition(': ')[2]}"
    if found.best is None or found.best.verdict.timing is None:
        return _Searched(sentence)
    speedups = {name: speed.value for name, speed in found.best.verdict.timing.speedups_x.items()}
    return _Searched(sentence, load_named(found.best.proposal.source, place), speedups)


def _swapped_in(model: nn.Module, part: Part, searched: _Searched) -> PartReport:
    """Swap the winner in, if there is one, wherever the part is."""
    if searched.winner is None:
        return PartReport(part.paths, searched.sentence, swapped=False)
    places = [int(i.place[0]) for i in part.graph.inputs]
    for path in part.paths:
        swap(model.get_submodule(path), searched.winner.ModelNew.forward, part.call, places, ("cuda",))
    return PartReport(part.paths, searched.sentence, swapped=True, speedups_x=searched.speedups_x)


def load_named(source: str, folder: Path) -> Any:
    """Import a candidate under a name of its own: torch.compile looks up a function's globals by the name of its module."""
    name = f"kernrl_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        sys.modules[name] = load_module(source, folder / f"{name}.py")
    return sys.modules[name]


# --- explain ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """What a model computes, part by part, and what could be one kernel."""

    parts: tuple[Part, ...]
    left: tuple[tuple[str, str], ...]
    rates: Rates

    def __str__(self) -> str:
        lines = []
        for part in self.parts:
            apart, together = part.floor_us(self.rates)
            fused = "; ".join(part.fused)
            lines.append(
                f"{part}: {fused}. At the limits of the {self.rates.name}: {apart:.4g} µs apart, {together:.4g} µs fused."
            )
        return "\n".join([*lines, *(f"{path or 'the model'}: {why}" for path, why in self.left)])


def explain(module: nn.Module, example_inputs: Inputs, target: str | None = None) -> Explanation:
    """The Graphs of a module's parts, which of their ops could be one kernel, and the floor under their time.

    Args:
        target: GPU for the floor, such as H100; this machine's, or H200 without one, if not given.

    Raises:
        UsageError: As `optimize`; or the GPU is not known.
    """
    made = shared_copy(module)
    arguments, named = arguments_of(made, example_inputs)
    parts = find_parts(made, arguments, named=named)
    if target and not device_for(target):
        raise UsageError(f"target: {target!r} is no GPU that is known here; name one such as H100 or H200.")
    name = target or (torch.cuda.get_device_name() if torch.cuda.is_available() else "H200")
    device = device_for(name) or device_for("H200")
    assert device
    return Explanation(parts.found, parts.left, device.rates(precision_of(made, (arguments, named))))
