"""The HTTP client of a server, as far as the tests of its users do not tell."""

from __future__ import annotations

import http.client
import socket

import pytest

from kernrl.http_client import Cancelled, Server


def test_a_request_is_dropped_that_is_cancelled_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing yet that `cancel` could close, and would wait for an answer as long as any other."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=5.0)
        connect = http.client.HTTPConnection.connect

        def slowly(connection: http.client.HTTPConnection) -> None:
            server.cancel()
            connect(connection)

        monkeypatch.setattr(http.client.HTTPConnection, "connect", slowly)
        with pytest.raises(Cancelled):
            server.post("/v1/completions", {"prompt": [5, 6]})
