"""The verifier's own version: a hash of its sources, under which verdicts and calibrations are kept."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent.parent


@cache
def verifier_version(*modules: ModuleType) -> str:
    """Hash of all of the verifier's sources, in whichever folder, or of these modules' alone; 16 hex digits.

    File names count, so a moved file gives another version, too.
    """
    digest = hashlib.sha256()
    for path in [Path(str(module.__file__)) for module in modules] or sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
