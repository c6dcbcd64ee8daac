"""A sandbox child for tests: runs the Python it is sent and answers with what `attempt()` returns or raises."""

import json
import socket
import time
from typing import Any

from kernrl.verifier.rpc.frames import Channel


def prepare(settings: dict[str, Any]) -> None:
    """Nothing is shared but the modules that every child may need."""
    assert time
    assert socket


def handle(channel: Channel) -> None:
    scope: dict[str, Any] = {}
    source = (channel.recv() or b"").decode()
    try:
        exec(source, scope)
        answer = f"did: {scope['attempt']()}"
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    channel.send(json.dumps(answer).encode())
