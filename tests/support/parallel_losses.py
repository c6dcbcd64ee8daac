"""One rank of the vocabulary-parallel losses, with gloo on a CPU or NCCL on a GPU; run once a rank by the tests of those.

Arguments: rank, ranks, the file through which they meet, a file of cases, where to save the results, and "cuda" for GPUs.
"""

import itertools
import sys

import torch
import torch.distributed as dist

from kernrl.errors import UsageError
from kernrl.kernels import grpo_loss, linear_grpo_loss

torch.set_num_threads(1)


def run(case: dict, rank: int, group) -> dict:
    ends = case["ends"]
    mine = slice(ends[rank], ends[rank + 1])
    equal = len({b - a for a, b in itertools.pairwise(ends)}) == 1
    where = {"vocab_group": group, "vocab_start": None if equal else mine.start}
    weight = None
    try:
        if "weight" in case:
            inputs, weight = case["inputs"].clone().requires_grad_(), case["weight"][mine].clone().requires_grad_()
            where["chunk_rows"] = case["chunk_rows"]
            loss, metrics = linear_grpo_loss(inputs, weight, case["ids"], **case["options"], **where)
        else:
            inputs = case["inputs"][..., mine].clone().requires_grad_()
            loss, metrics = grpo_loss(inputs, case["ids"], **case["options"], **where)
    except UsageError as error:
        return {"error": str(error)}
    loss.backward()
    gradients = {"inputs": inputs.grad, "weight": None if weight is None else weight.grad}
    return {"loss": loss.detach(), "metrics": metrics, **gradients}


if __name__ == "__main__":
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    gpu = sys.argv[6:] == ["cuda"]
    if gpu:
        torch.cuda.set_device(rank)
        torch.set_default_device("cuda")
    dist.init_process_group("nccl" if gpu else "gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=ranks)
    cases = torch.load(sys.argv[4], map_location=f"cuda:{rank}" if gpu else "cpu")
    torch.save({name: run(case, rank, dist.group.WORLD) for name, case in cases.items()}, sys.argv[5])
    dist.destroy_process_group()
