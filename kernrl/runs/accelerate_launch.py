"""`--launch ddp|fsdp2`: the same command line in one process a GPU, started by accelerate's launcher with our config."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from kernrl.console import counted, loading_torch
from kernrl.errors import InfrastructureError, UsageError

CONFIGS = Path(__file__).parent / "accelerate"


def start(kind: str, num_processes: int | None, arguments: Sequence[str]) -> int:
    """Run `kernrl` with `arguments` in several processes of this machine, and return their exit code.

    Args:
        kind: `ddp` or `fsdp2`.
        num_processes: None means one a GPU.

    Raises:
        UsageError: fewer than two processes, or more than there are GPUs.
        InfrastructureError: one of them was killed.
    """
    with loading_torch():
        import torch
        from accelerate.commands.launch import launch_command, launch_command_parser
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    gpus = torch.cuda.device_count()
    count = num_processes or gpus
    if count < 2:
        raise UsageError(
            f"--launch {kind} is for two processes or more, and this machine has {counted(gpus, 'GPU')}: leave it out."
        )
    if torch.cuda.is_available() and count > gpus:
        raise UsageError(f"--num-processes {count}: this machine has {counted(gpus, 'GPU')}.")
    # our processes print one sentence about an error; the launcher would add a page
    logging.disable(logging.CRITICAL)  # torch's loggers are made later, each with a level of its own
    config = ["--config_file", str(CONFIGS / f"{kind}.yaml"), "--num_processes", str(count)]
    try:
        launch_command(launch_command_parser().parse_args([*config, "-m", "kernrl", *arguments]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            raise InfrastructureError(f"Process {rank} of {count} was killed by {name}, and the others stopped.") from None
        return failure.exitcode
    except SignalException:
        return 130
    return 0
