"""The part of `bench_loss.py` that takes two GPUs: the vocabulary-parallel losses beside one GPU's, over NCCL.

    torchrun --nproc-per-node 2 scripts/bench_parallel.py --out parallel.json

Every rank makes the same rows, keeps its columns of them, and compares its loss and its part of the gradient with what one GPU
makes of the whole. Rank 0 writes the figures of the slower rank; a difference above rounding ends the run with an error.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from loss_timing import once_ms, peak_bytes

from kernrl.kernels import grpo_loss, linear_grpo_loss

N, V, H, SEQUENCES, TEMPERATURE = 8192, 151936, 2048, 8, 0.9
ROUNDS, GIB = 7, 2**30
LIMIT = 2**-7  # relative, of a bfloat16 gradient whose two sides are each rounded once


def make_tokens() -> dict:
    shape = (SEQUENCES, N // SEQUENCES)
    old = torch.randn(shape, device="cuda") - 12.5
    return {
        "advantages": torch.randn(SEQUENCES, device="cuda"), "old_logprobs": old,
        "mask": torch.rand(shape, device="cuda") < 0.9,
        "ref_logprobs": old + 0.1 * torch.randn(shape, device="cuda"), "beta": 0.04, "num_tokens": 0.9 * N,
        "temperature": TEMPERATURE,
    }  # fmt: skip


def slowest(value: float) -> float:
    """The larger of all ranks' values."""
    each = torch.tensor(value, device="cuda", dtype=torch.float64)
    dist.all_reduce(each, op=dist.ReduceOp.MAX)
    return each.item()


def time_of(run: Callable[[], object]) -> tuple[float, float]:
    """(median ms, GiB at the peak) of `run`, on the slower rank; all ranks start together."""
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        torch.cuda.synchronize()
        times.append(slowest(once_ms(run)))
    return sorted(times)[ROUNDS // 2], slowest(peak_bytes(run)) / GIB


def difference(got: torch.Tensor | None, want: torch.Tensor | None, columns: slice = slice(None)) -> float:
    """Of a gradient from `columns` of the whole's last dimension, relative to their norm."""
    assert got is not None
    assert want is not None
    want = want[..., columns]
    return ((got.float() - want.float()).norm() / want.float().norm()).item()


def transposed(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.t()


def bench(linear: bool, rank: int, ranks: int) -> list[dict]:
    torch.manual_seed(0)
    columns = slice(rank * V // ranks, (rank + 1) * V // ranks)
    ids, tokens = torch.randint(0, V, (SEQUENCES, N // SEQUENCES), device="cuda"), make_tokens()
    group = {"vocab_group": dist.group.WORLD}
    if linear:
        hidden = torch.randn(SEQUENCES, N // SEQUENCES, H, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(V, H, device="cuda", dtype=torch.bfloat16) * H**-0.5
        whole = [hidden, weight]
        part = [hidden.clone(), weight[columns].clone()]

        def loss(of, **options):
            return linear_grpo_loss(of[0], of[1], ids, **tokens, **options)[0]
    else:
        logits = torch.randn(SEQUENCES, N // SEQUENCES, V, device="cuda", dtype=torch.bfloat16) * 2
        whole, part = [logits], [logits[..., columns].clone()]

        def loss(of, **options):
            return grpo_loss(of[0], ids, **tokens, **({} if options else {"inplace": False}), **options)[0]

    for x in (*whole, *part):
        x.requires_grad_()

    def run(of, **options):
        for x in of:
            x.grad = None
        result = loss(of, **options)
        result.backward()
        return result.detach()

    one, two = run(whole), run(part, **group)
    error = abs((two - one) / one).item()
    if linear:
        errors = (
            difference(part[0].grad, whole[0].grad),
            difference(transposed(part[1].grad), transposed(whole[1].grad), columns),
        )
    else:
        errors = (difference(part[0].grad, whole[0].grad, columns),)
    worst = slowest(max(errors))
    assert slowest(error) < 1e-4, f"the loss of two ranks is off by {error}"
    assert worst < LIMIT, f"the gradient of two ranks is off by {errors}"
    rows = []
    for name, of, options in (("one GPU", whole, {}), ("two GPUs, each half of the vocabulary", part, group)):
        ms, peak = time_of(lambda of=of, options=options: run(of, **options))
        op = "linear_grpo_loss" if linear else "grpo_loss"
        rows.append({
            "shape": [N, H if linear else V], "name": f"{op}, {name}", "ms": ms, "peak_gib": peak, "loss_error": error,
            "gradient_error": worst, "x_floor": ms / (rows[0]["ms"] if rows else ms), "floor": "the time of one GPU",
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for linear in (False, True):
        rows += bench(linear, rank, dist.get_world_size())
        torch.cuda.empty_cache()
    if rank == 0:
        for row in rows:
            print("parallel", json.dumps(row), flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
