"""Which of a user's tasks are used for training: those whose judge can tell a right answer from a wrong one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import torch

from kernrl.config import VerifierConfig
from kernrl.console import log, progress
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.rollouts.collect import Verifier
from kernrl.tasks.task import FULL, Task, task_fingerprint
from kernrl.verifier.base.version import verifier_version
from kernrl.verifier.judge.task_lint import lint, objection
from kernrl.verifier.pool.derive_input_sets import InputSets


def sound_tasks(tasks: Iterable[Task], config: VerifierConfig, *, tell: bool = True) -> list[Task]:
    """The tasks that pass the task lint; each of the others is named on stderr with the reason, unless `tell` is off.

    Generated tasks (those with a composition) pass as they are: the generator's grammar makes only sound ones. Tasks that state
    no small shapes are linted on a GPU where there is one, else at derived shapes; without those they pass.

    Raises:
        UsageError: no task passes.
    """
    asked = list(tasks)
    cache = _LintCache(config)
    kept, problems = [], []
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    unchecked = 0
    with progress() as bar, _same_random_numbers(), closing(InputSets(config.cache_folder)) as input_sets:
        for task in bar.track(asked, total=len(asked), description="task lint"):
            known_sets = task if task.composition or on_gpu else input_sets.complete(task)
            small = any(s.name != FULL for s in known_sets.input_sets)
            if not task.composition and not small and not on_gpu:
                unchecked += 1
            elif not task.composition:
                problem = cache.problem(known_sets, config.precision or task.precision, "cpu" if small else "cuda")
                if problem:
                    problems.append(f"{task.id}: {problem}")
                    continue
            kept.append(task)
    cache.save()
    if asked and not kept:
        raise UsageError(f"no task can be learned from. {problems[0]}.")
    if tell:
        for problem in problems:
            log.print(f"Skipped: {problem}.", markup=False, highlight=False, soft_wrap=True)
        if unchecked:
            log.print(f"Not linted, for want of small shapes or a GPU: {unchecked} of {len(asked)} tasks.", highlight=False)
    return kept


def fitting_tasks(tasks: Sequence[Task], verifier: Verifier) -> list[Task]:
    """The tasks that the verifier has room to judge; each of the others is named on stderr with the bytes, before a model is
    asked for it. Generated tasks fit; a server elsewhere says so with the first verdict.

    Raises:
        UsageError: no task fits.
    """
    said = {task.id: verifier.unfit(task) for task in tasks if not task.composition}
    reasons = [reason for reason in said.values() if reason]
    if reasons and len(reasons) == len(tasks):
        raise UsageError(reasons[0])
    for reason in reasons:
        log.print(f"Skipped: {reason}", markup=False, highlight=False, soft_wrap=True)
    return [task for task in tasks if not said.get(task.id)]


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Put torch's random numbers back afterwards: a run must not depend on whether its tasks were linted before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield


class _LintCache:
    """What the lint said of tasks before, in one file of the verifier's cache folder."""

    def __init__(self, config: VerifierConfig):
        folder = config.cache_folder
        self._path = folder / f"lint-{verifier_version()}-{torch.__version__}.json" if folder else None
        self._problems: dict[str, str] = {}
        self._changed = False
        if self._path:
            with contextlib.suppress(OSError, ValueError):
                self._problems = dict(json.loads(self._path.read_text()))

    def problem(self, task: Task, precision: str, device: str) -> str:
        """Why a task cannot be used, or ''."""
        key = f"{task_fingerprint(task)}-{precision}-{device}"
        if key not in self._problems:
            try:
                self._problems[key] = _problem(task, precision, device)
            except torch.OutOfMemoryError:
                return ""  # another time there may be room
            self._changed = True
        return self._problems[key]

    def save(self) -> None:
        """Keep the answers. A folder that cannot be written costs time, not an answer."""
        if self._path and self._changed:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, json.dumps(self._problems))


def _problem(task: Task, precision: str, device: str) -> str:
    try:
        return objection(lint(task, precision, device=device, decisive=True))
    except torch.OutOfMemoryError:
        raise
    except UsageError as error:
        return str(error).removeprefix(f"{task.id}: ").rstrip(".")
    except Exception as error:  # of any kind: it comes out of the task's own code
        said = str(error).strip().partition("\n")[0]
        return f"its reference cannot be judged: {type(error).__name__}: {said}".rstrip(".")
