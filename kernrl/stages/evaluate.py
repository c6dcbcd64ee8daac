"""`kernrl eval`: sample from a model, or take candidates from disk, have every one judged, and say how good they are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from rich.console import Group
from rich.text import Text

from kernrl.config import EvalConfig
from kernrl.console import Result
from kernrl.errors import UsageError
from kernrl.reports.headline import lead_of_results
from kernrl.reports.results import THRESHOLDS_X, pass_ks
from kernrl.reports.tables import results_brief
from kernrl.training.evaluation import evaluate

FIGURES = r"correct|compiled|pass@[1-9]\d*|fast_[\d.]+|geomean_x"
LIMIT = re.compile(rf"(?:(?P<baseline>eager|compile)\.)?(?P<name>{FIGURES})=(?P<value>.+)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure that must not be lower than a value."""

    baseline: str | None
    name: str
    value: float


def run(config: EvalConfig) -> Result:
    """Run the stage; the exit code is 1 where a figure is below its `--fail-under` limit."""
    limits = [parse_limit(text) for text in config.fail_under]
    for limit in limits:
        require_measured(limit, config)
    results = evaluate(config)
    broken = [sentence for limit in limits if (sentence := below(limit, results))]
    where = Text(f"All figures: kernrl report {results['output']}", style="dim")
    result = Text(lead_of_results(results), "bold")
    view = Group(results_brief(results), where, *(Text(s, style="red") for s in broken), Text(), result)
    return Result(results, view, exit_code=1 if broken else 0)


def parse_limit(text: str) -> Limit:
    """`fast_1=0.5`, or `compile.fast_1=0.5` for a baseline that is not the first."""
    match = LIMIT.fullmatch(text.replace(" ", ""))
    if match is None:
        _bad_limit(text)
    try:
        value = float(match["value"])
    except ValueError:
        _bad_limit(text)
    if not math.isfinite(value):  # nothing is lower than NaN: every figure would pass
        _bad_limit(text)
    return Limit(match["baseline"], match["name"], value)


def require_measured(limit: Limit, config: EvalConfig) -> None:
    """Refuse a limit to a figure that this evaluation does not make, before it takes its minutes."""
    kind, _, number = limit.name.replace("@", "_").partition("_")
    if limit.baseline and limit.baseline not in config.baseline:
        more = ",".join([*config.baseline, limit.baseline])
        raise UsageError(f"--fail-under: nothing is timed against {limit.baseline}; add --baseline {more}.")
    if kind == "fast" and number not in (known := [f"{p:g}" for p in THRESHOLDS_X]):
        raise UsageError(f"--fail-under: there is no {limit.name}; p is one of {', '.join(known)}.")
    if kind == "pass" and config.model is not None and int(number) not in (ks := pass_ks(config.samples)):
        among = ", ".join(map(str, ks))
        raise UsageError(f"--fail-under: there is no {limit.name} of --samples {config.samples}; k is one of {among}.")


def _bad_limit(text: str) -> NoReturn:
    names = "correct, compiled, pass@1, fast_1, geomean_x, or compile.fast_1"
    raise UsageError(f"--fail-under: {text!r} is not NAME=VALUE with a name such as {names}.")


def below(limit: Limit, results: dict[str, Any]) -> str | None:
    """A sentence where the figure is lower than the limit or was not found, else None."""
    figures = results["baselines"].get(limit.baseline, {}) if limit.baseline else results
    name = f"{limit.baseline}.{limit.name}" if limit.baseline else limit.name
    value = figures.get(limit.name, {}).get("value")
    if value is None:
        return f"{name} was not measured, so it cannot be {limit.value:g} or more."
    return f"{name} is {value:.3g}, less than {limit.value:g}." if value < limit.value else None
