"""The command line. A command holds no logic: it names its config and the stage that runs it.

To add one, write a config in `kernrl/config/`, a `run(config) -> Result` in `kernrl/stages/`, and here

    @command(app, VerifyConfig)
    def verify(config: VerifyConfig) -> Result:
        '''Judge one candidate.'''
        from kernrl.stages.verify import run

        return run(config)

The import stays inside the function: `kernrl --help` loads neither torch nor transformers. Where it loads torch, it stands
under `with loading_torch():`, which says so.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer

from kernrl import __version__
from kernrl.command import Launch, Output, command
from kernrl.config import (
    BestOfNConfig,
    CheckConfig,
    DoctorConfig,
    EvalConfig,
    GenerateConfig,
    LiftConfig,
    ListConfig,
    OptimizeConfig,
    QuickstartConfig,
    ReinforceConfig,
    ReportConfig,
    RewardWeightedConfig,
    SamplesConfig,
    ServeConfig,
    SftConfig,
    ShowConfig,
    StatsConfig,
    VerifyConfig,
)
from kernrl.console import Result, launched, leads, loading_torch, log
from kernrl.errors import KernrlError, UsageError
from kernrl.signals import INTERRUPTED, handle_signals

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK_ERRORS = (*FULL_DISK, errno.EROFS, errno.EACCES, errno.EPERM)

HELP = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(name="kernrl", rich_markup_mode="rich", pretty_exceptions_enable=False, context_settings=HELP)
tasks_app = typer.Typer(rich_markup_mode="rich", context_settings=HELP)
app.add_typer(tasks_app, name="tasks")


def main() -> None:
    """Run the command line of this process."""
    # OpenMP's threads spin while they wait, and starve the verifier's processes where there is no GPU: sampling beside them
    # took more than 60 s on two cores, and 24 s with threads that sleep. It must be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.path[0] not in (
        "",
        _working_folder(),
    ):  # the script does not import from there, and neither may the processes we start
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show an arrow is no reason to end
            stream.reconfigure(errors="replace")
    # imported anywhere, it remarks that a kernel for 4-bit weights on a CPU is missing: ours are on GPUs
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    handle_signals()
    sys.exit(run(sys.argv[1:]))


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # torch would end the process with a message of its own
        sys.exit(_fail("the current folder is no longer there; change to another one.", UsageError.exit_code))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: the only place where errors become sentences and codes.

    0 done; 1 it failed, or the answer is no; 2 bad input; 3 the infrastructure broke; 130 interrupted.
    Any other exception is a bug of ours and is left to show its traceback.
    """
    try:
        ended = _commands(app)(list(arguments), prog_name="kernrl", standalone_mode=False)
        if isinstance(ended, Launch):
            from kernrl.runs.accelerate_launch import start

            ended = start(ended.kind, ended.num_processes, arguments)
            return _fail("Interrupted.", ended) if ended == INTERRUPTED else ended
        if isinstance(ended, Output):
            if leads():
                ended.print()
            return ended.result.exit_code
    except (typer.TyperException, KernrlError) as error:
        sentence = _typed_wrong(error) if isinstance(error, typer.TyperException) else str(error)
        return _fail(sentence.replace("Value error, ", ""), error.exit_code)
    except KeyboardInterrupt:
        ended = INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == INTERRUPTED:
            return INTERRUPTED  # a step of the quickstart has said so
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise  # rich, which prints the help, ends the process with 1 where its reader has gone
        # the reader (`head`, say) has what it wants; without this the interpreter's last flush would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        remedy = "make room, or name another place" if error.errno in FULL_DISK else "name another file or folder"
        return _fail(f"{error.filename or 'the output'}: {error.strerror}; {remedy}.", 1)
    # a code comes from typer itself: 130 for Ctrl-C in a command, 0 for --help and --version
    # a launcher says it for its ranks
    return _fail("" if launched() else "Interrupted.", INTERRUPTED) if ended == INTERRUPTED else ended or 0


@cache
def _commands(app: typer.Typer) -> Callable[..., Any]:
    """All commands with their flags, which take 30 ms to make: once for a process that runs several, as the quickstart does."""
    return typer.main.get_command(app)


def _typed_wrong(error: Any) -> str:
    """What typer says of a command line; of words that it does not know, also where to look for those that it does."""
    context = getattr(error, "ctx", None)
    if context is None or hasattr(error, "param"):  # of a bad value it says which there are
        return error.format_message()
    flag = "--help" if hasattr(context.command, "commands") else "--help-all"
    return f"{error.format_message().rstrip('.')}; `{context.command_path} {flag}` lists what there is."


def _fail(sentence: str, exit_code: int) -> int:
    if sentence and leads():
        print(log.by_words(f"kernrl: {sentence}"), file=sys.stderr)
    return exit_code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kernrl {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train language models to write fused Triton kernels, with rewards that can be trusted."""
    if context.invoked_subcommand is None:
        context.get_help()  # typer prints it at once


@tasks_app.callback(invoke_without_command=True)
def tasks_root(context: typer.Context) -> None:
    """Make tasks, and look at them."""
    if context.invoked_subcommand is None:
        context.get_help()  # typer prints it at once


@command(app, QuickstartConfig)
def quickstart(config: QuickstartConfig) -> Result:
    """See all of kernrl at work in a few minutes, on the shipped model."""
    from kernrl.stages.quickstart import run

    return run(config)


@command(app, DoctorConfig)
def doctor(config: DoctorConfig) -> Result:
    """Say what this machine can do, and what to install for the rest."""
    from kernrl.stages.doctor import run

    return run(config)


@command(app, VerifyConfig)
def verify(config: VerifyConfig) -> Result:
    """Judge a candidate, or a file of them: is it right, is it fast, and is it the candidate's own work?

    Exit codes of one candidate: 0 correct, 1 not correct, 2 bad input, 3 the verifier failed, 4 only a GPU can tell.
    """
    from kernrl.stages.verify import run

    return run(config)


@command(app, OptimizeConfig)
def optimize(config: OptimizeConfig) -> Result:
    """Give it a module, and get back a faster file that was checked.

    Exit codes: 0 done, whether anything is faster or not; 2 bad input; 3 the verifier failed on every candidate; 130
    interrupted, with the best so far written.
    """
    with loading_torch():
        from kernrl.stages.optimize import run

    return run(config)


@command(app, ServeConfig)
def serve(config: ServeConfig) -> Result:
    """Give verdicts over HTTP, for trainers elsewhere."""
    with loading_torch():
        from kernrl.stages.serve import run

    return run(config)


@command(app, SftConfig)
def sft(config: SftConfig) -> Result:
    """Teach a model to write kernels from worked pairs."""
    with loading_torch():
        from kernrl.stages.sft import run

    return run(config)


@command(app, BestOfNConfig)
def best_of_n(config: BestOfNConfig) -> Result:
    """Sample, verify, and fine-tune on the best."""
    with loading_torch():
        from kernrl.stages.best_of_n import run

    return run(config)


@command(app, ReinforceConfig)
def reinforce(config: ReinforceConfig) -> Result:
    """Policy gradient with verified reward."""
    with loading_torch():
        from kernrl.stages.reinforce import run

    return run(config)


@command(app, RewardWeightedConfig)
def reward_weighted(config: RewardWeightedConfig) -> Result:
    """Sample once, verify, and fine-tune with the reward as weight."""
    with loading_torch():
        from kernrl.stages.reward_weighted import run

    return run(config)


@command(app, EvalConfig)
def eval_(config: EvalConfig) -> Result:
    """Measure how good a model's kernels are, or kernels on disk."""
    with loading_torch():
        from kernrl.stages.evaluate import run

    return run(config)


@command(app, ReportConfig)
def report(config: ReportConfig) -> Result:
    """Make an HTML report of a run, or compare several."""
    from kernrl.stages.report import run

    return run(config)


@command(app, SamplesConfig)
def samples(config: SamplesConfig) -> Result:
    """Browse a run's candidates and their verdicts."""
    from kernrl.stages.samples import run

    return run(config)


@command(tasks_app, GenerateConfig)
def generate(config: GenerateConfig) -> Result:
    """Make fusion tasks with worked Triton solutions."""
    from kernrl.stages import tasks

    return tasks.generate(config)


@command(tasks_app, ListConfig)
def list_(config: ListConfig) -> Result:
    """List the tasks of a source."""
    from kernrl.stages import tasks

    return tasks.list_(config)


@command(tasks_app, ShowConfig)
def show(config: ShowConfig) -> Result:
    """Show a task's reference beside a worked solution."""
    from kernrl.stages import tasks

    return tasks.show(config)


@command(tasks_app, StatsConfig)
def stats(config: StatsConfig) -> Result:
    """Count the tasks of a source by family, depth, split, op and style."""
    from kernrl.stages import tasks

    return tasks.stats(config)


@command(tasks_app, CheckConfig)
def check(config: CheckConfig) -> Result:
    """Run every reference on the CPU and list the tasks that cannot be used."""
    from kernrl.stages import tasks

    return tasks.check(config)


@command(tasks_app, LiftConfig)
def lift(config: LiftConfig) -> Result:
    """Show what a task computes: its ops, what could be one kernel, and what each costs."""
    from kernrl.stages import tasks_lift

    return tasks_lift.run(config)
