"""The processes of a run: rank 0 leads, and an error on any rank ends all of them with one sentence.

Ranks wait for each other in messages between CPUs (gloo). NCCL would wait in a kernel that spins on the GPU, where candidates
may be timed, and with a time limit meant for collectives and not for a step's verification.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from kernrl.errors import InfrastructureError, KernrlError

T = TypeVar("T")

PATIENCE = timedelta(days=2)
"""How long a rank waits for rank 0."""

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Application timeout")
"""Words in gloo's errors when the other process has ended."""


class FailedElsewhere(KernrlError):
    """Another rank failed first and has reported it: this one ends silently, with the same exit code."""

    def __init__(self, exit_code: int):
        super().__init__("")
        self.exit_code = exit_code


class Ranks:
    """The processes of a run, as a launcher started them. With one process every method is trivial.

    Attributes:
        accelerator: device, mixed precision and trackers.
        index, size: this process's rank, and how many there are.
        sharded: weights are sharded over the processes (FSDP2), and not replicated in each (DDP).
    """

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.index, self.size = accelerator.process_index, accelerator.num_processes
        self.sharded = self.size > 1 and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        self.group: Any = None
        if self.size > 1:
            self.group = dist.new_group(backend="gloo", timeout=PATIENCE)
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._board = TCPStore(address, port, is_master=False)

    @property
    def beside(self) -> int:
        """On rank 0, how many ranks run on its machine: the first ones, each on the GPU of its own index."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or self.size)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which owns order, files, console and verification."""
        return self.index == 0

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of a forward pass: bf16 arithmetic on float32 weights, on a GPU. Shards are gathered in bf16 anyway."""
        return nullcontext() if self.sharded else self.accelerator.autocast()

    def lead(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 alone; every rank returns what it returned, which must pickle."""
        return self.tell(work() if self.leads else None)

    def tell(self, message: Any = None) -> Any:
        """Rank 0's message, on every rank. The other ranks' argument is ignored."""
        if self.size == 1:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def send(self, message: Any) -> None:
        """Send rank 0 a message, which must pickle."""
        dist.send_object_list([message], dst=0, group=self.group)

    def receive(self, rank: int) -> Any:
        """On rank 0, the next message from a rank."""
        box = [None]
        dist.recv_object_list(box, src=rank, group=self.group)
        return box[0]

    def note(self, what: str) -> None:
        """Set a flag that every rank can read at any time, without waiting."""
        self._board.set(f"kernrl/{what}", "")

    def noted(self, what: str) -> bool:
        """Whether any rank has set that flag."""
        return self._board.check([f"kernrl/{what}"])

    def any(self, value: bool) -> bool:
        """Whether the argument is true on any rank; every rank calls this."""
        if self.size == 1:
            return value
        values = torch.tensor([int(value)])
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return bool(values)

    def meet(self) -> None:
        """Wait until every rank has called this."""
        if self.size > 1:
            dist.barrier(group=self.group)

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def max(self, values: Tensor) -> Tensor:
        """Take the maximum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def report_failure(self, error: BaseException) -> None:
        """Let only the first rank that fails report its error, as recorded in the launcher's store.

        Returns where this rank is the first.

        Raises:
            FailedElsewhere: another rank failed before, and this one's error is a consequence.
        """
        code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
        lost = isinstance(error, RuntimeError) and any(word in str(error) for word in LOST_PEER)
        mine = f"{self.index} {InfrastructureError.exit_code if lost else code}"
        try:
            noted = self._board.compare_set("kernrl/failed", "", mine).decode()
        except (RuntimeError, OSError):  # the process that kept the store has ended
            raise FailedElsewhere(InfrastructureError.exit_code) from None
        if noted != mine or lost:  # a killed peer could record nothing; the launcher reports it
            raise FailedElsewhere(int(noted.split()[1])) from None
        if isinstance(error, KernrlError) and not self.leads:
            print(f"kernrl: {error}", file=sys.stderr)


@contextmanager
def open_ranks(accelerator: Accelerator) -> Iterator[Ranks]:
    """The run's processes: one, or those that `accelerate launch` started. They end together.

    Raises:
        FailedElsewhere: see `Ranks.report_failure`.
    """
    ranks = Ranks(accelerator)
    try:
        yield ranks
    except BaseException as error:
        if ranks.size > 1:
            ranks.report_failure(error)
        raise
    ranks.meet()
    accelerator.end_training()
