"""Kernels whose programs each make some outputs by themselves: pointwise chains and pooling windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kernrl.tasks.grammar.program import Operand, Producer, Shape, Step
from kernrl.tasks.solutions.launch_code import Launch, host_dims, launch, out_line, pixels
from kernrl.tasks.solutions.stage import Stage
from kernrl.tasks.solutions.tile import At, load, point_lines, uses_channel

PointGrid = Literal["flat", "persistent", "lines"]
"""One program a block; a fixed number of programs that loop; a 2-D grid of lines and blocks within a line."""

PROGRAMS = 1056
"""Programs of a persistent grid: eight for each of 132 multiprocessors."""


def _sizes(shape: Shape) -> dict[str, str]:
    sizes = {"n_elements": "x.numel()"}
    if shape.layout == "rows":
        return {**sizes, "N": host_dims(shape)[-1]}
    if shape.layout == "grid":
        return {**sizes, "C": "C", "S": pixels(shape)}
    return sizes


def _channel_of(shape: Shape) -> str:
    return "offs % N" if shape.layout == "rows" else "offs // S % C"


def point_kernel(stage: Stage, name: str, grid: PointGrid, block: int, options: str, in_place: bool) -> Launch:
    """A chain of pointwise ops."""
    if grid == "lines":
        return _lines_kernel(stage, name, min(block, 1024), options)
    steps, shape = stage.steps, stage.before
    channel = [f"c = {_channel_of(shape)}"] if uses_channel(steps) else []
    out = "x" if in_place else "out"
    work = [
        "mask = offs < n_elements",
        *channel,
        "x = tl.load(x_ptr + offs, mask=mask)",
        *point_lines(steps, At()),
        f"tl.store({out}_ptr + offs, x, mask=mask)",
    ]
    if grid == "persistent":
        step = "tl.num_programs(0) * BLOCK"
        body = [
            f"for start in range(tl.program_id(0) * BLOCK, n_elements, {step}):",
            *(f"    {line}" for line in ["offs = start + tl.arange(0, BLOCK)", *work]),
        ]
        programs = f"(min({PROGRAMS}, triton.cdiv(x.numel(), {block})),)"
    else:
        body = ["offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", *work]
        programs = f"(triton.cdiv(x.numel(), {block}),)"
    allocate = [] if in_place else [out_line(shape, stage.after)]
    made = launch(
        name,
        body,
        steps,
        sizes=_sizes(shape),
        blocks={"BLOCK": str(block)},
        grid=programs,
        allocate=allocate,
        letters=host_dims(shape),
        options=options,
    )
    return Launch(made.source, (*made.host, "out = x"), made.steps) if in_place else made


def _lines_kernel(stage: Stage, name: str, block: int, options: str) -> Launch:
    """A 2-D grid: one line (a row, or the pixels of a channel) by one block, so that a channel's numbers need no division."""
    steps, shape = stage.steps, stage.before
    letters = host_dims(shape)
    if shape.layout == "grid":
        n, lines, channel, at = pixels(shape), "B * C", ["c = row % C"], At(channel_mask="")
    else:
        n, lines, channel, at = letters[-1], " * ".join(letters[:-1]), [], At("cols")
    body = [
        "row = tl.program_id(0)",
        "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
        "mask = cols < n",
        "offs = row * n + cols",
        *(channel if uses_channel(steps) else []),
        "x = tl.load(x_ptr + offs, mask=mask)",
        *point_lines(steps, at),
        "tl.store(out_ptr + offs, x, mask=mask)",
    ]
    grid = f"({lines}, triton.cdiv({n}, {block}))"
    return launch(
        name,
        body,
        steps,
        sizes={"n": n, "C": "C"},
        blocks={"BLOCK": str(block)},
        grid=grid,
        allocate=[out_line(shape, stage.after)],
        letters=host_dims(shape),
        options=options,
    )


def window_kernel(stage: Stage, name: str, block: int, options: str) -> Launch:
    """A pooling window with the ops before it applied to each of its elements and those after it to the result."""
    before, core, after = stage.around_core()
    assert core.core is not None
    size, stride = core.window
    shape = stage.before
    letters = host_dims(shape)[2:]
    body = ["offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "mask = offs < n_elements"]
    rest = "offs"
    for letter in reversed(letters):
        body.append(f"{letter.lower()} = {rest} % O{letter}" + (f" * {stride}" if stride > 1 else ""))
        rest = f"{rest} // O{letter}"
    body.append(f"plane = {rest}")
    if uses_channel(stage.steps):
        body.append("c = plane % C")
    is_max = core.core.body == "max"
    lowest = 'float("-inf")' if is_max else "0.0"
    body.append(f"acc = tl.full([BLOCK], {lowest}, dtype=tl.float32)")
    index, indent = "plane", ""
    for letter, offset in zip(letters, "ijk", strict=False):
        body.append(f"{indent}for {offset} in tl.static_range({size}):")
        index = (
            f"({index}) * {letter} + {letter.lower()} + {offset}"
            if index != "plane"
            else f"plane * {letter} + {letter.lower()} + {offset}"
        )
        indent += "    "
    body += [
        f"{indent}idx = {index}",
        f"{indent}x = tl.load(x_ptr + idx, mask=mask)",
        *(indent + line for line in point_lines(before, At(offs="idx"))),
        f"{indent}acc = tl.maximum(acc, x)" if is_max else f"{indent}acc += x",
        "x = acc" if is_max else f"x = acc / {size ** len(letters)}",
        *point_lines(after, At()),
        "tl.store(out_ptr + offs, x, mask=mask)",
    ]
    side = "{d} - " + str(size - 1) if stride == 1 else f"({{d}} - {size}) // {stride} + 1"
    outputs = [f"O{letter} = {side.format(d=letter)}" for letter in letters]
    allocate = [*outputs, out_line(shape, stage.after)]
    sizes = {"n_elements": "out.numel()", "C": "C"} | {k: k for letter in letters for k in (letter, f"O{letter}")}
    return launch(
        name,
        body,
        stage.steps,
        sizes=sizes,
        blocks={"BLOCK": str(block)},
        grid=f"(triton.cdiv(out.numel(), {block}),)",
        allocate=allocate,
        letters=host_dims(shape),
        options=options,
    )


def gemm_kernel(
    steps: Sequence[Step], name: str, producer: Producer, blocks: tuple[int, int, int], options: str, after: Shape
) -> Launch:
    """A tiled product with a pointwise epilogue. `ieee`: TF32 would not be float32's answer."""
    batched = len(after.dims) == 3
    a, b = ("tl.program_id(2) * M * K + ", "tl.program_id(2) * K * N + ") if batched else ("", "")
    right = "n * K + k[:, None]" if producer.right_transposed else "k[:, None] * N + n"
    bias_name = Operand(producer.bias, "channel").name
    bias = [f"acc += {load(bias_name, 'n', 'n < N')}"] if producer.bias else []
    body = [
        "m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]",
        "n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]",
        "acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)",
        "for start in range(0, K, BLOCK_K):",
        "    k = start + tl.arange(0, BLOCK_K)",
        f"    a = tl.load(a_ptr + {a}m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)",
        f"    b = tl.load(b_ptr + {b}{right}, mask=(k[:, None] < K) & (n < N), other=0.0)",
        '    acc = tl.dot(a, b, acc, input_precision="ieee")',
        *bias,
        "mask = (m < M) & (n < N)",
        f"offs = {'(tl.program_id(2) * M + m) * N' if batched else 'm * N'} + n",
        *([] if not steps else ["x = acc"]),
        *point_lines(steps, At("n", "n < N")),
        f"tl.store(out_ptr + offs, {'x' if steps else 'acc'}, mask=mask)",
    ]
    assert producer.gemm is not None
    left, weight = producer.gemm
    bm, bn, bk = blocks
    columns = f"{weight}.shape[0]" if producer.right_transposed else f"{weight}.shape[-1]"
    dims = ["B, M, K = x.shape" if batched else "M, K = x.shape", f"N = {columns}"]
    shape = "B, M, N" if batched else "M, N"
    return launch(
        name,
        body,
        steps,
        sizes={"M": "M", "N": "N", "K": "K"},
        blocks={"BLOCK_M": str(bm), "BLOCK_N": str(bn), "BLOCK_K": str(bk)},
        grid=f"(triton.cdiv(M, {bm}), triton.cdiv(N, {bn}){', B' if batched else ''})",
        allocate=[*dims, f"out = torch.empty(({shape}), device=x.device, dtype=x.dtype)"],
        hosts={"a": left, "b": weight, bias_name: producer.bias},
        letters=(),
        options=options,
    )
