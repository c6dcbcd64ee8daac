"""Processes that the verifier's tests share, as each takes seconds of CPU time to start."""

from collections.abc import Iterator

import pytest

from kernrl.verifier.pool.local import cpu_fork_server
from kernrl.verifier.rpc.fork_server import ForkServer


@pytest.fixture(scope="session")
def cpu_forks() -> Iterator[ForkServer]:
    """The fork server of plan readers, interpreters and judges."""
    made = cpu_fork_server()
    yield made
    made.close()
