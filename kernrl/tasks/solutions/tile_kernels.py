"""Kernels around reducing ops: the whole set in registers, or walked in chunks two or three times."""

from __future__ import annotations

from kernrl.tasks.solutions.launch_code import Launch, host_dims, launch, out_line
from kernrl.tasks.solutions.stage import Stage
from kernrl.tasks.solutions.tile import At, Tile, affine_line, core_lines, point_lines, uses_channel


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _store(tile: Tile, collapsed: bool, value: str = "x") -> str:
    if not collapsed:
        return f"tl.store(out_ptr + offs, {value}, mask=mask)"
    mask = f", mask={tile.out_mask}" if tile.out_mask else ""
    return f"tl.store(out_ptr + {tile.out_offs}, {value}{mask})"


def _finish(stage: Stage, tile: Tile, name: str, body: list[str], blocks: dict[str, str], options: str) -> Launch:
    grid = tile.grid.format(**blocks)
    allocate = [out_line(stage.before, stage.after)]
    return launch(
        name,
        body,
        stage.steps,
        sizes=tile.sizes,
        blocks=blocks,
        grid=grid,
        allocate=allocate,
        letters=host_dims(stage.before),
        options=options,
    )


def whole_kernel(stage: Stage, tile: Tile, name: str, blocks: dict[str, str], options: str) -> Launch:
    """Read the set once, keep it in registers through any number of reducing ops, write once."""
    collapsed = any(core.collapses for core in stage.cores)
    channel = tile.channel_line if uses_channel(stage.steps) else []
    body = [*tile.setup, *tile.chunk(True), *channel, "x = tl.load(x_ptr + offs, mask=mask)"]
    for step in stage.steps:
        body += core_lines(step, tile) if step.core else point_lines((step,), tile.at)
    return _finish(stage, tile, name, [*body, _store(tile, collapsed)], blocks, options)


class Walk:
    """Writes a kernel that walks its set in chunks; every pass repeats the pointwise ops before the reduction."""

    def __init__(self, stage: Stage, tile: Tile) -> None:
        self.before, self.step, self.after = stage.around_core()
        assert self.step.core is not None
        self.core = self.step.core
        self.tile = tile
        # a channel that is the same for the whole set is computed once
        early = uses_channel(stage.steps) and not tile.channel_varies
        self.setup = [*tile.setup, *(tile.channel_line if early else [])]

    def loop(self, work: list[str], last: bool = False) -> list[str]:
        """One pass over the set, with `x` loaded and taken through the ops before the reduction."""
        tile = self.tile
        needs_channel = tile.channel_varies and uses_channel((*self.before, self.step, *self.after) if last else self.before)
        chunk = [*tile.chunk(False), *(tile.channel_line if needs_channel else [])]
        lines = [*chunk, "x = tl.load(x_ptr + offs, mask=mask)", *point_lines(self.before, tile.at), *work]
        return [f"for start in range(0, {tile.count}, {tile.step}):", *_indented(lines)]

    def accumulator(self, name: str = "acc", value: str = "0.0") -> str:
        if value == "0.0":
            return f"{name} = tl.zeros({self.tile.shape}, dtype=tl.float32)"
        return f"{name} = tl.full({self.tile.shape}, {value}, dtype=tl.float32)"

    def moments(self, welford: bool) -> list[str]:
        """Lines that leave `mean` and `rstd` (a norm) or `rstd` (an RMS norm)."""
        tile, n = self.tile, self.tile.count
        total = tile.reduce("sum", "acc")
        if self.core.body == "rms":
            squares = self.loop(["acc += tl.where(mask, x * x, 0.0)"])
            return [self.accumulator(), *squares, f"rstd = tl.rsqrt({total} / {n} + 1e-5)"]
        if not welford:
            # the second pass also sums what rounding left in the mean: long sums of one sign lose digits
            sums = self.loop(["acc += tl.where(mask, x, 0.0)"])
            squares = self.loop(["x = tl.where(mask, x - mean, 0.0)", "drift += x", "acc += x * x"])
            drift = f"drift = {tile.reduce('sum', 'drift')} / {n}"
            rstd = f"rstd = tl.rsqrt({total} / {n} - drift * drift + 1e-5)"
            first = [self.accumulator(), *sums, f"mean = {total} / {n}"]
            return [*first, self.accumulator(), self.accumulator("drift"), *squares, drift, "mean += drift", rstd]
        # Chan, Golub and LeVeque (1979): merge each chunk's mean and squared deviations into the running ones
        merge = [
            f"size = tl.minimum({n} - start, {tile.step})",
            f"chunk_mean = {tile.reduce('sum', 'tl.where(mask, x, 0.0)')} / size",
            "x = tl.where(mask, x - chunk_mean, 0.0)",
            f"chunk_mean += {tile.reduce('sum', 'x')} / size",
            "delta = chunk_mean - mean",
            "share = size / (start + size)",
            f"m2 += {tile.reduce('sum', 'x * x')} + delta * delta * start * share",
            "mean += delta * share",
        ]
        return ["mean = 0.0", "m2 = 0.0", *self.loop(merge), f"rstd = tl.rsqrt(m2 / {n} + 1e-5)"]

    def normalised(self) -> str:
        return "x = x * rstd" if self.core.body == "rms" else "x = (x - mean) * rstd"

    def exponentials(self) -> list[str]:
        """Lines that leave the maximum `top` and the sum `total` of exp(x - top), kept per lane until the end."""
        tile = self.tile
        work = [
            "x = tl.where(mask, x, -1e38)",
            "top = tl.maximum(m, x)",
            "total = total * tl.exp(m - top) + tl.exp(x - top)",
            "m = top",
        ]
        lines = [self.accumulator("m", "-1e38"), self.accumulator("total"), *self.loop(work)]
        return [*lines, f"top = {tile.reduce('max', 'm')}", f"total = {tile.reduce('sum', 'total * tl.exp(m - top)')}"]

    def collapse(self) -> list[str]:
        """Lines that leave the one number `x` of a collapsing op."""
        tile, body = self.tile, self.core.body
        if body == "logsumexp":
            return [*self.exponentials(), "x = top + tl.log(total)"]
        if body in ("max", "min"):
            bound = 'float("-inf")' if body == "max" else 'float("inf")'
            work = [f"acc = tl.{body}imum(acc, tl.where(mask, x, {bound}))"]
            return [self.accumulator(value=bound), *self.loop(work), f"x = {tile.reduce(body, 'acc')}"]
        total = tile.reduce("sum", "acc") + (f" / {tile.count}" if body == "mean" else "")
        return [self.accumulator(), *self.loop(["acc += tl.where(mask, x, 0.0)"]), f"x = {total}"]


def walking_kernel(stage: Stage, tile: Tile, name: str, blocks: dict[str, str], options: str, welford: bool = False) -> Launch:
    """One reducing op whose set is read in chunks."""
    walk = Walk(stage, tile)
    if walk.core.collapses:
        body = [*walk.setup, *walk.collapse(), *point_lines(walk.after, tile.at), _store(tile, True)]
        return _finish(stage, tile, name, body, blocks, options)
    if walk.core.body in ("norm", "rms"):
        passes, last = walk.moments(welford), [walk.normalised(), *affine_line(walk.step, tile.at)]
    else:
        passes = walk.exponentials()
        # the select keeps `x - top` from being contracted with a product before it: the largest element is exactly 0
        share = "x = tl.exp(x - top) / total" if walk.core.body == "softmax" else "x = x - top - tl.log(total)"
        last = ["x = tl.where(mask, x, -1e38)", share]
    final = walk.loop([*last, *point_lines(walk.after, tile.at), _store(tile, False)], last=True)
    return _finish(stage, tile, name, [*walk.setup, *passes, *final], blocks, options)


def stats_and_apply(
    stage: Stage, tile: Tile, names: tuple[str, str], blocks: dict[str, str], options: str, welford: bool = False
) -> tuple[Launch, Launch]:
    """A norm in two kernels: the moments of every set, then a pointwise pass that has all programs busy again."""
    walk = Walk(stage, tile)
    moments = walk.moments(welford)
    stores = [
        _store(tile, True, value).replace("out_ptr", f"{value}_ptr")
        for value in ("mean", "rstd")
        if walk.core.body != "rms" or value == "rstd"
    ]
    grid_batch = stage.space == "batch"
    grid = stage.before.layout == "grid"
    count = {True: "C" if grid else "N", False: tile.sizes.get("n_rows", "")}[grid_batch]
    outputs = [
        f"{value} = torch.empty({count}, device=x.device, dtype=torch.float32)"
        for value in ("mean", "rstd")
        if walk.core.body != "rms" or value == "rstd"
    ]
    hosts = {"mean": "mean", "rstd": "rstd"}
    # the moments need no parameters of the norm nor what follows it
    setup = [*tile.setup, *(tile.channel_line if uses_channel(walk.before) and not tile.channel_varies else [])]
    stats = launch(
        names[0],
        [*setup, *moments, *stores],
        walk.before,
        sizes=tile.sizes,
        blocks=blocks,
        grid=tile.grid.format(**blocks),
        allocate=outputs,
        hosts=hosts,
        letters=host_dims(stage.before),
        options=options,
    )
    channel = ("offs // S % C" if grid else "offs % N") if grid_batch or uses_channel(stage.steps) else ""
    row = "c" if grid_batch else "offs // n"
    mean = [] if walk.core.body == "rms" else [f"mean = tl.load(mean_ptr + {row}, mask=mask)"]
    body = [
        "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "mask = offs < n_elements",
        *([f"c = {channel}"] if channel else []),
        "x = tl.load(x_ptr + offs, mask=mask)",
        *point_lines(walk.before, At()),
        *mean,
        f"rstd = tl.load(rstd_ptr + {row}, mask=mask)",
        walk.normalised(),
        *affine_line(walk.step, At()),
        *point_lines(walk.after, At()),
        "tl.store(out_ptr + offs, x, mask=mask)",
    ]
    apply = launch(
        names[1],
        body,
        stage.steps,
        sizes={"n_elements": "x.numel()", **tile.sizes},
        blocks={"BLOCK": "1024"},
        grid="(triton.cdiv(x.numel(), 1024),)",
        allocate=[out_line(stage.before, stage.after)],
        hosts=hosts,
        letters=host_dims(stage.before),
        options="num_warps=4",
    )
    return stats, apply
