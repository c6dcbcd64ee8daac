"""Fork servers that outlive the verifiers of one test process: each costs three CPU seconds of imports.

For tests of what stands above a verifier, and closes it as users would; the verifier's own start theirs.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from kernrl.verifier.rpc.fork_server import ForkServer

PLACES = ("kernrl.verifier.sandbox.sandbox", "kernrl.verifier.pool.local", "kernrl.verifier.pool.derive_input_sets")
_kept: dict[str, ForkServer] = {}


class Borrowed:
    """A fork server that stays when it is closed."""

    def __init__(self, name: str, module: str, settings: dict[str, Any], **options: Any) -> None:
        self._server = _kept.setdefault(json.dumps([module, settings]), ForkServer(name, module, settings, **options))

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def start(self, *, wait: bool = True) -> None:
        self._server.start(wait=wait)

    def fork(self, request: dict[str, Any], *descriptors: int) -> socket.socket:
        return self._server.fork(request, *descriptors)

    def close(self) -> None:
        """Leave it to the next verifier."""


def borrow(patch: pytest.MonkeyPatch) -> None:
    """Verifiers that are opened while `patch` holds share their fork servers, and leave them running."""
    for place in PLACES:
        patch.setattr(f"{place}.ForkServer", Borrowed)


def close() -> None:
    while _kept:
        _kept.popitem()[1].close()
