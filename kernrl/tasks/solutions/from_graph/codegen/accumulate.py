"""Reductions that are not held whole: accumulators that take chunks in, what they come to, and parts put together."""

from __future__ import annotations

from collections.abc import Callable

from kernrl.tasks.solutions.from_graph.codegen.emit import NEUTRAL, Body
from kernrl.tasks.solutions.from_graph.codegen.layouts import total
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op


def accumulate(body: Body, op: Op, traits: list[str]) -> list[str]:
    """Lines of the loop that take a chunk in; returns the accumulators."""
    x = body.at(op.reads[0], body.layout(op.reads[0]))
    mask = body.tile.mask(set(body.group.axes))
    names = [body.name(f"{op.value}_acc")] if op.how in NEUTRAL else [body.name(f"{r}_acc") for r in op.results]

    def start(name: str, value: str) -> None:
        body.fixed.add(name)
        body.say(f"{name} = tl.full({body.tile.shape}, {value}, dtype=tl.float32)", 0)

    if op.how == "sum":
        start(names[0], "0.0")
        body.say(f"{names[0]} += tl.where({mask}, {x}, 0.0)")
    elif op.how in NEUTRAL:
        start(names[0], NEUTRAL[op.how])
        body.say(f"{names[0]} = tl.{op.how}imum({names[0]}, tl.where({mask}, {x}, {NEUTRAL[op.how]}))")
    elif op.how == "expsum":
        traits.append("online")
        start(names[0], "-1e38")
        start(names[1], "0.0")
        top = body.name(f"{op.value}_new")
        body.say(f"{top} = tl.maximum({names[0]}, tl.where({mask}, {x}, {NEUTRAL['max']}))")
        body.say(f"{names[1]} = {names[1]} * tl.exp({names[0]} - {top}) + tl.where({mask}, tl.exp({x} - {top}), 0.0)")
        body.say(f"{names[0]} = {top}")
    else:
        # Welford's update, lane by lane; his d·(x − new mean) is d²·(1 − 1/count), which no rounding makes negative, as one of
        # a product x may that a compiler contracts with the difference. The first d² may overflow: times 0 it would be NaN
        traits.append("welford")
        count, d, share = (body.name(f"{op.value}_{word}") for word in ("count", "delta", "share"))
        names.append(count)
        for name in names:
            start(name, "0.0")
        body.say(f"{count} += tl.where({mask}, 1.0, 0.0)")
        body.say(f"{d} = tl.where({mask}, {x} - {names[0]}, 0.0)")
        body.say(f"{share} = 1.0 / tl.maximum({count}, 1.0)")
        body.say(f"{names[0]} += {d} * {share}")
        body.say(f"{names[1]} += {d} * ({d} * (1.0 - {share}))")
    return names


def settle(body: Body, op: Op, names: list[str]) -> None:
    """Lines behind the loop that make one value of each accumulator."""

    def keep(result: str, text: str) -> str:
        variable = body.name(result)
        body.say(f"{variable} = {text}", 0)
        body.scopes[0][result, body.layout(result)] = variable
        return variable

    fold = body.tile.fold
    if op.how in NEUTRAL:
        keep(op.value, fold(op.how, names[0]))
    elif op.how == "expsum":
        top = keep(op.results[0], fold("max", names[0]))
        keep(op.results[1], fold("sum", f"{names[1]} * tl.exp({names[0]} - {top})"))
    else:
        n = body.size(total(body.group.reduced, body.program.sets))
        mean = keep(op.results[0], f"{fold('sum', f'{names[0]} * {names[2]}')} / {n}")
        off = f"({names[0]} - {mean})"
        keep(op.results[1], fold("sum", f"{names[1]} + {names[2]} * {off} * {off}"))


def parts_text(op: Op, names: list[str], fold: Callable[[str, str], str]) -> list[str]:
    """What a program writes of its part, one number for each accumulator."""
    if op.how in NEUTRAL:
        return [fold(op.how, names[0])]
    if op.how == "expsum":
        return [fold("max", names[0]), fold("sum", f"{names[1]} * tl.exp({names[0]} - {fold('max', names[0])})")]
    count = fold("sum", names[2])
    mean = f"({fold('sum', f'{names[0]} * {names[2]}')} / tl.maximum({count}, 1.0))"
    off = f"({names[0]} - {mean})"
    return [mean, fold("sum", f"{names[1]} + {names[2]} * {off} * {off}"), count]


def parts_of_tile(body: Body, op: Op) -> list[str]:
    """What a tile that holds a part of each set has of a reduction, one text for each accumulator."""
    x = body.at(op.reads[0], body.layout(op.reads[0]))
    mask = body.tile.mask(set(body.group.axes))
    fold = body.tile.fold

    def masked(text: str, other: str) -> str:
        return f"tl.where({mask}, {text}, {other})"

    if op.how in NEUTRAL:
        return [fold(op.how, masked(x, NEUTRAL[op.how]))]
    names = [body.name(f"{r}_tile") for r in op.results]
    if op.how == "expsum":
        body.say(f"{names[0]} = {fold('max', masked(x, NEUTRAL['max']))}")
        body.say(f"{names[1]} = {fold('sum', masked(f'tl.exp({x} - {names[0]})', '0.0'))}")
        return names
    count = body.name(f"{op.value}_count")
    body.say(f"{count} = {fold('sum', masked('1.0', '0.0'))}")
    body.say(f"{names[0]} = {fold('sum', masked(x, '0.0'))} / tl.maximum({count}, 1.0)")
    off = body.name(f"{op.value}_off")
    body.say(f"{off} = {masked(f'{x} - {names[0]}', '0.0')}")
    body.say(f"{names[1]} = {fold('sum', f'{off} * {off}')}")
    return [*names, count]


def missing_parts(op: Op) -> tuple[str, ...]:
    """What stands for a part that there is none of, for each accumulator."""
    return {"expsum": (NEUTRAL["max"], "0.0"), "moments": ("0.0",) * 3}.get(op.how, (NEUTRAL.get(op.how, "0.0"),))
