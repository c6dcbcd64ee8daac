"""The verifier's own version: a hash of its sources, under which verdicts and calibrations are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

from kernrl.tasks import eval_mode, init_arguments

PACKAGE = Path(__file__).parent.parent


@cache
def verifier_version() -> str:
    """Hash of all of the verifier's sources, in whichever folder, and of what says in which mode a task is judged and with
    which arguments its module is made: 16 hex digits.

    File names count, so a moved file gives another version, too.
    """
    return _hash([*sorted(PACKAGE.rglob("*.py")), *(Path(str(m.__file__)) for m in (eval_mode, init_arguments))])


def version_of(*modules: ModuleType) -> str:
    """Hash of some modules of the verifier alone: 16 hex digits."""
    return _hash([Path(str(module.__file__)) for module in modules])


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(PACKAGE.parent)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
