"""Processes that the verifier's tests share, as each takes seconds of CPU time to start."""

from collections.abc import Callable

import pytest

from kernrl.verifier.pool.local import cpu_fork_server
from kernrl.verifier.rpc.fork_server import ForkServer


@pytest.fixture(scope="session")
def cpu_forks(fork_servers: Callable[[pytest.MonkeyPatch], None]) -> ForkServer:
    """The fork server of plan readers, interpreters and judges."""
    with pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        return cpu_fork_server()
