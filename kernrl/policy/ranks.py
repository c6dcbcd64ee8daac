"""Several processes as one run: rank 0 leads, and what fails on any of them ends all of them with one sentence.

A rank that waits for another waits here, in messages between CPUs (gloo). NCCL would wait in a kernel that spins on the GPU,
where candidates may be timed, and with a time limit meant for collectives, not for a step's verification.
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
"""How long a rank waits for the one that leads."""

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Application timeout")
"""What gloo says when the process at the other end is gone."""


class FailedElsewhere(KernrlError):
    """Another rank failed first and has said why: this one ends with the same exit code and without a word."""

    def __init__(self, exit_code: int):
        super().__init__("")
        self.exit_code = exit_code


class Ranks:
    """The processes of a run, as a launcher started them; alone, every method is trivial.

    Attributes:
        accelerator: device, mixed precision and trackers.
        index, size: which process this is, of how many.
        sharded: the weights are spread over the processes (FSDP2), in place of a replica in each (DDP).
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
    def leads(self) -> bool:
        """Whether this is rank 0, which owns order, files, console and verification."""
        return self.index == 0

    def autocast(self) -> AbstractContextManager[Any]:
        """Around a forward pass: bf16 arithmetic on float32 weights, where there is a GPU. Shards are gathered in bf16."""
        return nullcontext() if self.sharded else self.accelerator.autocast()

    def lead(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 alone; every rank returns what it returned, which must pickle."""
        return self.tell(work() if self.leads else None)

    def tell(self, message: Any = None) -> Any:
        """Rank 0's message, on every rank. The others' own is ignored."""
        if self.size == 1:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def send(self, message: Any) -> None:
        """Give rank 0 a message of this rank's own, which must pickle."""
        dist.send_object_list([message], dst=0, group=self.group)

    def receive(self, rank: int) -> Any:
        """The next message that a rank sends, on rank 0."""
        box = [None]
        dist.recv_object_list(box, src=rank, group=self.group)
        return box[0]

    def note(self, what: str) -> None:
        """Put a note where every rank can look at any time, without waiting for anybody."""
        self._board.set(f"kernrl/{what}", "")

    def noted(self, what: str) -> bool:
        """Whether any rank has noted that."""
        return self._board.check([f"kernrl/{what}"])

    def any(self, wish: bool) -> bool:
        """Whether any rank wishes it."""
        if self.size == 1:
            return wish
        wishes = torch.tensor([int(wish)])
        dist.all_reduce(wishes, dist.ReduceOp.MAX, group=self.group)
        return bool(wishes)

    def meet(self) -> None:
        """Wait until all are here."""
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

    def blame(self, error: BaseException) -> None:
        """Settle who speaks of a failure: the first to note its own on the launcher's store.

        Returns where this rank is that first one, or knows no better.

        Raises:
            FailedElsewhere: Another rank failed before, and this one's error is what that did to it.
        """
        code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
        lost = isinstance(error, RuntimeError) and any(word in str(error) for word in LOST_PEER)
        mine = f"{self.index} {InfrastructureError.exit_code if lost else code}"
        try:
            noted = self._board.compare_set("kernrl/failed", "", mine).decode()
        except (RuntimeError, OSError):  # the store went down with the process that kept it
            raise FailedElsewhere(InfrastructureError.exit_code) from None
        if noted != mine or lost:  # a peer that was killed could note nothing; its launcher says so
            raise FailedElsewhere(int(noted.split()[1])) from None
        if isinstance(error, KernrlError) and not self.leads:
            print(f"kernrl: {error}", file=sys.stderr)


@contextmanager
def open_ranks(accelerator: Accelerator) -> Iterator[Ranks]:
    """The run's processes: one, or as many as `accelerate launch` started. They end together.

    Raises:
        FailedElsewhere: See `Ranks.blame`.
    """
    ranks = Ranks(accelerator)
    try:
        yield ranks
    except BaseException as error:
        if ranks.size > 1:
            ranks.blame(error)
        raise
    ranks.meet()
    accelerator.end_training()
