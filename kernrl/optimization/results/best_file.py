"""best.py: the winner as one readable file that needs torch and triton alone, and checks itself.

It is a header of comments, the judged source byte for byte, and the self-check with the reference in it.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from kernrl import __version__
from kernrl.console import counted
from kernrl.optimization.results import self_check
from kernrl.optimization.results.result_text import against, as_judged, set_words
from kernrl.optimization.search.trials import Trial
from kernrl.tasks.constants import edits
from kernrl.tasks.init_arguments import in_order
from kernrl.tasks.task import FULL, Task
from kernrl.verifier.base.verdict import Verdict

SOURCE = re.compile(
    r"^# --- judged source (?P<sha>[0-9a-f]{64}): begins\n(?P<source>.*?)\n"
    r"# --- judged source (?P=sha): ends(?P<bare>, no newline)?$",
    re.MULTILINE | re.DOTALL,
)
"""Between lines with the source's own sha256, which no line of the source can have: it may be an earlier best.py itself."""
CHECK = "# --- self-check\n"
WIDTH = 110

LARGE_BYTES = 4 << 20
"""A full set that moves more than this is not interpreted by `python best.py`."""

FEWER_OPERATIONS = "It does "
"""How the verifier's note begins where a candidate does fewer operations than the reference asks for."""


def best_file(task: Task, trial: Trial, made: dict[str, Any]) -> str:
    """The text of best.py.

    Args:
        made: `date`, and `module`: its path or name, or `""` where it has none besides the task's id.
    """
    task = as_judged(task, trial.verdict)
    source, line = trial.proposal.source, f"# --- judged source {trial.proposal.key}"
    end = "" if source.endswith("\n") else "\n"
    bare = ", no newline" if end else ""
    header = "\n".join(_header(task, trial, made))
    judged = f"{line}: begins\n{source}{end}{line}: ends{bare}"
    return f"{header}\n\n{judged}\n\n\n{_data(task, trial.verdict)}\n\n{_checking()}"


def judged_source(text: str) -> str:
    """The source inside a best.py, byte for byte: its sha256 is the verdict's `candidate_sha`."""
    found = SOURCE.search(text)
    return found["source"] + ("" if found["bare"] else "\n") if found else ""


def _header(task: Task, trial: Trial, made: dict[str, Any]) -> list[str]:
    verdict = trial.verdict
    sha = hashlib.sha256(task.pytorch_code.encode()).hexdigest()
    versions = ", ".join(f"{name} {number}" for name, number in verdict.versions.items() if name != "verifier")
    replaced = f"`{made['module']}`" if made.get("module") else "the module"
    said = [
        f"A faster form of `{task.id}`, found and checked by kernrl {__version__} on {made['date']}.",
        "",
        *[f"- {line}" for line in against(verdict)],
        f"- Replaces: {replaced}, whose source has the sha256 {sha[:16]} (whole at the end of this file).",
        f"- Candidate: {trial.id}, {trial.proposal}; sha256 {trial.proposal.key[:16]}.",
        f"- Precision: {verdict.precision}. Versions: {versions}.",
        *[f"- Fewer operations: {note}" for note in verdict.notes if note.startswith(FEWER_OPERATIONS)],
        f"- Checked: {'; '.join(_checked(task, verdict))}.",
        *[f"- Not checked: {line}" for line in not_checked(verdict)],
        "",
        "Use it: `from best import ModelNew`, with the arguments and the state_dict of the module that it replaces.",
        "Check it again, on new inputs: `python best.py`.",
    ]
    lines = []
    for line in said:
        indent = "  " if line.startswith("- ") else ""
        if not line:
            lines.append("")
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}".rstrip() for line in lines]


def _checked(task: Task, verdict: Verdict) -> list[str]:
    """Input sets with their sizes, the number of inputs, their regimes, and the largest error."""
    parts = []
    for name in dict.fromkeys(record["input_set"] for record in verdict.errors):
        records = [record for record in verdict.errors if record["input_set"] == name]
        regimes = ", ".join(dict.fromkeys(str(record["regime"]) for record in records))
        worst = max(float(record["excess"]) for record in records)
        parts.append(
            f"{set_words(task, name)}, {counted(len(records), 'input')} ({regimes}), largest error {worst:.2g} of its tolerance"
        )
    return parts or ["nothing"]


def not_checked(verdict: Verdict) -> list[str]:
    """Sentences about what nobody looked at."""
    seen = {record["input_set"] for record in verdict.errors}
    missing = []
    if FULL not in seen:
        missing.append("the module's own sizes, which need a GPU.")
    if verdict.timing is None or verdict.timing.kind == "modelled":
        missing.append("its speed: no GPU has run it, and every time above is modelled.")
    if verdict.specialised:
        missing.append(f"other sizes: {verdict.specialised}")
    missing += [note for note in verdict.notes if not note.startswith(FEWER_OPERATIONS)]
    missing.append("gradients: it is for inference alone.")
    return missing


def _data(task: Task, verdict: Verdict) -> str:
    judged = {record["input_set"] for record in verdict.errors} | {FULL}
    sets = {s.name: dict(s.constants) for s in task.input_sets if s.name in judged}
    changes = {name: edits(task.pytorch_code, constants) for name, constants in sets.items() if constants}
    large = int(verdict.plan.get("bytes_moved") or 0) > LARGE_BYTES
    return "\n".join(
        [
            "# The module that ModelNew replaces, and the sizes at which it was judged.",
            "KERNRL = {",
            f'    "precision": {verdict.precision!r},',
            f'    "input_sets": {sets!r},',
            f'    "edits": {changes!r},  # of `reference`: from byte, to byte, number',
            f'    "full_is_large": {large!r},',
            f'    "reference": {_literal(task.pytorch_code)},',
            "}",
        ]
    )


def _literal(text: str) -> str:
    """A string literal that a person can read, where there is one."""
    plain = "'''" not in text and "\\" not in text and not text.endswith("'")
    return f"'''\\\n{text}'''" if plain else repr(text)


def _checking() -> str:
    """The self-check's own text."""
    text = Path(self_check.__file__).read_text(encoding="utf-8").partition(CHECK)[2].lstrip("\n")
    return f"{inspect.getsource(in_order)}\n\n{text}"
