"""The figures of a suite of modules that were optimised, from the results of `bench_optimize.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from kernrl.optimization.search.trials import beats
from kernrl.reports.statistics import TaskBootstrap
from kernrl.verifier.base.verdict import Verdict


def figures_of_both(results: Sequence[Mapping[str, Any]], before: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a suite and, where modules were searched twice, those of the first searches alone.

    Args:
        before: The record so far, for what older ones do not say of each module.
    """
    twice = [result for result in results if result["searches"] == 2]
    lost = any("first" not in result for result in twice)
    firsts = [result.get("first", result) for result in results if result["searches"] == 1 or "first" in result]
    said: dict[str, Any] = {}
    for name in ("gpu", "commit"):
        said[name] = listed([before.get(name) if lost else None, *(r[name] for r in firsts)])
        said |= {f"second_{name}": listed(r["second"][name] for r in twice)} if twice else {}
    if twice:
        said |= {"searched_twice": len(twice), "first": before.get("first") if lost else summary(firsts)}
    return said | summary(results)


def listed(names: Iterable[str | None]) -> str | None:
    """Each name once, in the order in which they come."""
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a suite: shares of all its modules, geometric means over those that are right; intervals over modules."""
    if not results:
        return {"modules": 0}
    right = [r for r in results if r["best"]]
    verdicts = {r["task"]: Verdict.from_json(r["best"]["verdict"]) for r in right}
    names = dict.fromkeys(name for v in verdicts.values() if v.timing for name in v.timing.speedups_x)
    bootstrap = TaskBootstrap(len(results))

    def interval(estimate: Any) -> list[float | None]:
        return [estimate.value, estimate.low, estimate.high]

    figures: dict[str, Any] = {"modules": len(results), "right": len(right) / len(results), "baselines": {}}
    figures["right_interval"] = interval(bootstrap.share([float(bool(r["best"])) for r in results]))
    for name in names:
        speeds = [v.speedup(name) if (v := verdicts.get(r["task"])) else None for r in results]
        faster = [float((v := verdicts.get(r["task"])) is not None and beats(v, name)) for r in results]
        logs, timed = [math.log(s.value) if s else 0.0 for s in speeds], [float(s is not None) for s in speeds]
        figures["baselines"][name] = {
            "faster": fmean(faster),
            "faster_interval": interval(bootstrap.share(faster)),
            "not_slower": fmean(float(s is not None and (s.value >= 1.0 or not s.significant)) for s in speeds),
            "geomean_x": geomean([s.value for s in speeds if s]),
            "geomean_interval": interval(bootstrap.geometric_mean(logs, timed)),
            "timed": int(sum(timed)),
        }
    winners = [r["best"]["origin"] for r in right]
    figures["winners"] = {origin: winners.count(origin) for origin in dict.fromkeys(winners)}
    figures["origins"] = {origin: share_of(origin, right) for r in right for origin in r["by_origin"]}
    noises = sorted(v.timing.noise for v in verdicts.values() if v.timing)
    figures["noise"] = {"median": noises[len(noises) // 2], "largest": noises[-1]} if noises else None
    counts = sorted(r["judged"] for r in right)
    figures["judged"] = {"median": counts[len(counts) // 2], "fewest": counts[0]} if counts else None
    figures["styles"] = _counted(r["best"]["name"] for r in right if r["best"]["origin"] == "style")
    gains = [
        r["by_origin"]["variant"] / r["by_origin"]["style"] for r in right if {"variant", "style"} <= r["by_origin"].keys()
    ]
    figures["variants_over_styles_x"] = geomean([max(1.0, gain) for gain in gains])
    figures["regret"] = {count: regret_after(right, count) for count in ("8", "16", "32", "64")}
    firsts = sorted(r["first_right_s"] for r in right if r.get("first_right_s") is not None)
    figures["first_right_s"] = {"median": firsts[len(firsts) // 2], "last": firsts[-1]} if firsts else None
    figures["families"] = {}
    for name in dict.fromkeys(r.get("family", "") for r in results):
        mine = [r for r in results if r.get("family", "") == name]
        speeds = {
            b: [s.value for r in mine if (v := verdicts.get(r["task"])) and (s := v.speedup(b))] for b in names
        }  # fmt: skip
        means = {b: geomean(values) for b, values in speeds.items()}
        figures["families"][name] = {"modules": len(mine), "right": sum(bool(r["best"]) for r in mine), "geomean_x": means}
    figures["seconds_of_searches"] = sum(r["spent_s"] for r in results)
    figures["clock"] = sorted({r["clock"] for r in right})
    return figures


def share_of(origin: str, right: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What an origin of candidates brought: modules that it was right on, those whose best is from it, and by how much the best
    of all was faster for it. A variant counts as its own, whatever it is a variant of."""
    mine = [r["by_origin"] for r in right if origin in r["by_origin"]]
    others = [(ratios[origin], max((x for name, x in ratios.items() if name != origin), default=None)) for ratios in mine]
    gains = [max(1.0, ratio / best) for ratio, best in others if best]
    wins = sum(r["best"]["origin"] == origin for r in right)
    return {"modules": len(mine), "wins": wins, "alone": len(mine) - len(gains), "gain_x": geomean(gains)}


def regret_after(right: Sequence[Mapping[str, Any]], count: str) -> dict[str, Any]:
    """By how much the best of all beat the best of the first so many, where that many were tried."""
    lost = [r["regret"][count] for r in right if count in r["regret"]]
    known = [loss for loss in lost if loss is not None]
    return {"modules": len(lost), "none_right": len(lost) - len(known), "mean": fmean(known) if known else None}


def _counted(names: Iterator[str]) -> dict[str, int]:
    found = list(names)
    return dict(sorted({name: found.count(name) for name in found}.items(), key=lambda pair: -pair[1]))


def geomean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(fmean(math.log(v) for v in values)) if values else None
