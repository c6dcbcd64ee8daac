"""Products written as kernels, each with its tail, beside cuBLAS's product alone: where are they chosen, and how fast are they?

    python scripts/bench_products.py --out products.json                       # one GPU, about three minutes
    python scripts/bench_products.py --out products.json --precisions tf32     # tf32 alone

For each shape and policy the styles `dot` of a linear layer with a ReLU are run beside `torch.mm` of the same operands. A style
is chosen where the cost model (`plausible`) puts it before all that leave the product to the library. 1 is cuBLAS's speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from loss_timing import medians_ms

from kernrl.files import replace_file
from kernrl.runs.run_directory import environment
from kernrl.tasks.solutions.from_graph.plausible import plausible
from kernrl.tasks.solutions.from_graph.styles import STYLES, graphs_of, write_solutions
from kernrl.tasks.solutions.run_solutions import load_module
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device, device_for
from kernrl.verifier.base.precision import COMPUTE_DTYPE

SHAPES = [  # rows, depth, columns
    *((8192, 8192, n) for n in (1024, 4096, 8192)),
    *((4096, k, 4096) for k in (256, 1024, 4096, 11008)),
    *((m, 4096, 4096) for m in (16, 64, 256, 1024)),
    *((32768, 512, n) for n in (64, 256, 512, 2048)),
    (2048, 2048, 50257), (100_000, 96, 128), (512, 16384, 512), (128, 65536, 128),
    # as many tiles as leave multiprocessors idle
    (640, 16384, 1280), (1024, 8192, 1280), (2048, 8192, 1280), (512, 4096, 1536), (300, 30000, 304), (96, 4096, 768),
]  # fmt: skip
PRECISIONS = ("tf32", "bf16", "fp16")
DOT = tuple(style for style in STYLES if style.product and not style.product.windows)
SECOND = tuple(
    replace(style, name=f"{style.name}-second", product=replace(style.product, rank=1))
    for style in DOT
    if style.product and style.product.described
)
"""The second tile of styles that take the first one alone: is the order in which tiles are put the right one?"""

Row = dict[str, Any]

SOURCE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear({k}, {n}, bias=False)

    def forward(self, x):
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn({m}, {k})]


def get_init_inputs():
    return []
"""


def task_of(m: int, k: int, n: int, precision: str) -> Task:
    """A linear layer with a ReLU."""
    return Task(f"{m}x{k}x{n}", SOURCE.format(m=m, k=k, n=n), precision=precision)


def chosen(task: Task, device: Device) -> bool:
    """Whether the cost model puts a style that writes the product first."""
    order = plausible(graphs_of(task), device.rates(task.precision), precision=task.precision)
    return bool(order) and order[0][0].product is not None


def measure(task: Task, shape: tuple[int, int, int], device: Device, folder: Path) -> Row:
    """Times of every style of a product and of cuBLAS's product, in turns, in µs."""
    m, k, n = shape
    dtype = COMPUTE_DTYPE[task.precision]
    x, weight = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(n, k, device="cuda", dtype=dtype) * k**-0.5
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    runs: dict[str, Any] = {"cuBLAS": lambda: torch.mm(x, weight.t(), out=out)}
    truth = torch.relu(x.double() @ weight.double().t()) if m * n < 1 << 27 else None
    wrong = []
    for solution in write_solutions(task, (*DOT, *SECOND), algebra=False):
        with torch.device("cuda"):
            module = load_module(solution.triton_code, folder / f"p{len(list(folder.iterdir()))}.py").ModelNew().to(dtype)
        module.load_state_dict({"layer.weight": weight})
        try:
            with torch.no_grad():
                found = module(x)
        except Exception as error:  # a tile that this GPU's memory does not hold, say: the others are still measured
            print(f"{task.id} {solution.style}: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        if truth is not None and not torch.allclose(found.double(), truth, rtol=2e-2, atol=2e-2):
            wrong.append(solution.style)
            continue
        runs[solution.style] = torch.no_grad()(lambda module=module: module(x))
    us = {name: 1e3 * ms for name, ms in medians_ms(runs).items()}
    best = min((name for name in us if name != "cuBLAS"), key=us.__getitem__, default=None)
    row: Row = {"shape": list(shape), "precision": task.precision, "us": us, "wrong": wrong, "chosen": chosen(task, device)}
    return row | {"best": best, "speed": us["cuBLAS"] / us[best] if best else None}


def lines(rows: list[Row]) -> Iterator[str]:
    """A line for each row, and what they come to for each policy."""
    for row in rows:
        speed = f"{row['speed']:.2f} by {row['best']}" if row["best"] else "no style fits"
        shape = " x ".join(map(str, row["shape"]))
        yield f"{row['precision']} {shape}: {speed}{', chosen' if row['chosen'] else ''}" + (", WRONG" if row["wrong"] else "")
    for precision in dict.fromkeys(row["precision"] for row in rows):
        mine = [row["speed"] for row in rows if row["precision"] == precision and row["chosen"] and row["speed"]]
        if mine:
            least, middle = min(mine), statistics.median(mine)
            yield f"{precision}, where chosen ({len(mine)} shapes): least {least:.2f}, median {middle:.2f} of cuBLAS's speed"


def main() -> None:
    """Measure, and write the record after each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the record, as JSON")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=("fp32", *PRECISIONS))
    args = parser.parse_args()
    device = device_for(torch.cuda.get_device_name())
    if device is None:
        parser.error(f"{torch.cuda.get_device_name()} is not listed in kernrl/verifier/base/devices.py; add it there")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in args.precisions:
            torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            for shape in SHAPES:
                rows.append(measure(task_of(*shape, precision), shape, device, Path(folder)))
                print(next(lines(rows[-1:])), flush=True)
                replace_file(args.out, json.dumps({**environment(), "rows": rows}, indent=1) + "\n")
                torch.cuda.empty_cache()
    print(*list(lines(rows))[len(rows) :], sep="\n")


if __name__ == "__main__":
    main()
