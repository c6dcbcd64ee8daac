"""A model server from outside: JSON over HTTP, asked with a time limit, asked again where that may help."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from kernrl.errors import InfrastructureError, UsageError

RETRIES, FIRST_WAIT_S = 4, 0.5
"""Further tries of a request that may be repeated, each after twice the wait of the one before."""

BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses of a server that may do better another time."""

KEY = "KERNRL_SERVER_KEY"
"""Environment variable with the key that a server asks for: a flag would be written down in the run's folder."""

REASON_CHARS = 300
"""Of a server's own words, as much as is repeated to the user."""


class Refused(UsageError):
    """The server understood the request and will not serve it."""

    def __init__(self, sentence: str, status: int):
        super().__init__(sentence)
        self.status = status


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Server:
    """One server at one address. Thread-safe: every request has a connection of its own."""

    def __init__(self, url: str, *, timeout_s: float):
        """`url` as given by `--server-url`; raises UsageError for anything that is no http address."""
        parts = urlsplit(url)
        try:
            self._address = (parts.hostname or "", parts.port)
        except ValueError:
            self._address = ("", None)
        if parts.scheme not in ("http", "https") or not self._address[0]:
            raise UsageError(f"--server-url {url}: give an address such as http://localhost:8000.")
        self.url, self.timeout_s = url.rstrip("/").removesuffix("/v1"), timeout_s
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        # people give the address with and without OpenAI's /v1
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if (key := os.environ.get(KEY)) else {}
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def get(self, path: str) -> Any:
        """The answer to a GET, read as JSON; raises as `post` does."""
        return self._ask("GET", path, None, RETRIES)

    def post(self, path: str, body: Any = None, *, once: bool = False) -> Any:
        """The answer to a POST, read as JSON; the text itself where it is none.

        Args:
            once: never ask again: the request changes something, and may have been heard.

        Raises:
            Refused: the server will not (a status of 400 to 499); the sentence gives its reason.
            InfrastructureError: nobody answers, or not in time, or the server stays broken.
            Cancelled: `cancel` was called.
        """
        return self._ask("POST", path, body, 0 if once else RETRIES)

    def cancel(self) -> None:
        """Close every connection and take no more requests: a server stops the work that nobody waits for."""
        self._cancelled.set()
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, method: str, path: str, body: Any, retries: int) -> Any:
        failure = ""
        for wait_s in (0.0, *(FIRST_WAIT_S * 2**n for n in range(retries))):
            if self._cancelled.wait(wait_s):
                raise Cancelled
            try:
                status, text = self._exchange(method, path, body)
            except TimeoutError:
                # not asked again: a server that is too slow would be made slower
                raise InfrastructureError(self._said(path, f"no answer within {self.timeout_s:g} s.")) from None
            except (OSError, http.client.HTTPException) as error:
                if self._cancelled.is_set():
                    raise Cancelled from None
                failure = f"nobody answers ({error or type(error).__name__}); is the server running?"
                continue
            if status < 300:
                return _json_or_text(text)
            failure = f"status {status}: {_reason(text)}"
            if status == 401:
                failure += f" (a server's key is read from the environment variable {KEY})"
            if status not in BUSY:
                raise Refused(self._said(path, failure), status)
        raise InfrastructureError(self._said(path, failure))

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, str]:
        connection = self._connect(*self._address, timeout=self.timeout_s)
        with self._lock:
            self._open.add(connection)
        try:
            data = None if body is None else json.dumps(body)
            headers = self._headers | ({"Content-Type": "application/json"} if data else {})
            connection.request(method, self._prefix + path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _said(self, path: str, what: str) -> str:
        return f"--server-url {self.url}: {path.partition('?')[0]}: {what}"


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reason(text: str) -> str:
    """A server's own words, without the JSON around them."""
    found = _json_or_text(text)
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    words = found if isinstance(found, str) else text
    return " ".join(words.split())[:REASON_CHARS] or "no reason given"
