"""The form `graph`: how a task is asked of nano by its Graph, and how a candidate is made of what it replies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache

from kernrl.errors import UsageError
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.nano.assemble import MalformedReplyError, assemble
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes
from kernrl.tasks.nano.headers import Shapes
from kernrl.tasks.nano.listing import FAST, words_of, write_listing
from kernrl.tasks.nano.reply import write_reply
from kernrl.tasks.solutions.from_graph.answer import Source, read_source
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.styles import TAUGHT
from kernrl.tasks.task import Task

Lifted = tuple[Graph, str, Shapes]
"""Graph, listing without its precision, shapes in its words."""

_MOST_KEPT = 4096

_kept: OrderedDict[tuple[str, str], Lifted] = OrderedDict()
"""`source_of` a task → what was lifted of it, of those lifted last: here, or by the processes of a `Lifter`."""


def source_of(task: Task) -> tuple[str, str]:
    """All that a task's Graph is made of: its source, and the name by which errors call it."""
    return task.pytorch_code, task.id


def lift_source(code: str, name: str) -> Lifted:
    """What is made of a source; nothing is kept.

    Raises:
        LiftError: It has no Graph.
    """
    graph = lift(Task(id=name, pytorch_code=code))
    graphs = at_distinct_sizes(graph)
    return graph, write_listing(graphs, ""), words_of(graphs)


def is_lifted(task: Task) -> bool:
    """Whether asking the task, or reading a reply to it, need not lift it."""
    return source_of(task) in _kept


def keep(source: tuple[str, str], lifted: Lifted) -> None:
    """Have `ask`, `candidate` and `replies` read what was lifted elsewhere."""
    _kept[source] = lifted
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)


def _lifted(code: str, name: str) -> Lifted:
    found = _kept.get((code, name))
    if found is None:
        keep((code, name), found := lift_source(code, name))
    return found


@lru_cache(maxsize=4096)
def _source(code: str) -> Source:
    return read_source(code)


def ask(task: Task, precision: str, *, fast: bool = False) -> str:
    """The prompt for a task; `fast` asks for the fastest style, of a nano that was taught to be asked.

    Raises:
        LiftError: The task has no Graph; the message says why, and at which line.
    """
    asked = f"{precision} {FAST}" if fast else precision
    return asked + _lifted(*source_of(task))[1]


def candidate(task: Task, reply: str) -> str:
    """The file that a reply comes to.

    Raises:
        MalformedReplyError: The message says why there is none.
    """
    return _candidate(*source_of(task), reply)


@lru_cache(maxsize=4096)  # most replies of a step repeat another, and the one thread that reads them makes 200 a second
def _candidate(code: str, name: str, reply: str) -> str:
    graph, _, shapes = _lifted(code, name)
    try:
        return assemble(_source(code), graph, shapes, reply)
    except CannotWriteError as error:
        raise MalformedReplyError(str(error)) from None


def replies(task: Task, precision: str) -> list[str]:
    """The worked replies to a task under a policy, one a style; none where there is no rule for it.

    Raises:
        LiftError: The task has no Graph.
    """
    graphs = at_distinct_sizes(_lifted(*source_of(task))[0])
    found: dict[str, str] = {}
    for style in TAUGHT:
        try:
            reply = write_reply(graphs, style, precision)
        except CannotWriteError:
            continue
        found.setdefault(reply.partition("\n")[2], reply)
    return list(found.values())


def unasked(tasks: Iterable[Task]) -> list[tuple[Task, str]]:
    """The tasks that cannot be asked by their Graph, each with the reason."""
    found = []
    for task in tasks:
        try:
            _lifted(*source_of(task))
            _source(task.pytorch_code)
        except (UsageError, CannotWriteError) as error:
            found.append((task, str(error)))
    return found
