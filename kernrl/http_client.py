"""HTTP client of a server: JSON requests with a time limit, repeated where that may help."""

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
"""Retries of a request that may be repeated, and the first wait, which doubles each time."""

BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which a request is repeated."""

KEY = "KERNRL_SERVER_KEY"
"""Environment variable with a model server's API key; a flag would be recorded in the run's folder."""

REASON_CHARS = 300
"""Most characters of a server's error message that are shown."""


class Refused(UsageError):
    """The server refused the request (status 4xx)."""

    def __init__(self, sentence: str, status: int, reason: str):
        super().__init__(sentence)
        self.status, self.reason = status, reason


class Cancelled(Exception):
    """The request was cancelled by this side."""


class Server:
    """A server at one address. Thread-safe: every request has a connection of its own."""

    def __init__(self, url: str, *, timeout_s: float, flag: str = "--server-url", key: str = KEY):
        """
        Args:
            url: the value of `flag`, which error messages name.
            key: environment variable with the key or token that the server asks for.

        Raises:
            UsageError: `url` is no http address.
        """
        parts = urlsplit(url)
        try:
            self._address = (parts.hostname or "", parts.port)
        except ValueError:
            self._address = ("", None)
        if parts.scheme not in ("http", "https") or not self._address[0]:
            raise UsageError(f"{flag} {url}: give an address such as http://localhost:8000.")
        self._flag, self._key = flag, key
        self.url, self.timeout_s = url.rstrip("/").removesuffix("/v1"), timeout_s
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        # the address is given with or without OpenAI's /v1
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {secret}"} if (secret := os.environ.get(key)) else {}
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def get(self, path: str) -> Any:
        """The answer to a GET, decoded from JSON; raises as `post` does."""
        return self._ask("GET", path, None, RETRIES)

    def post(self, path: str, body: Any = None, *, once: bool = False) -> Any:
        """The answer to a POST, decoded from JSON; an answer that is not JSON is returned as text.

        Args:
            once: never repeat the request: it changes something, and may have had its effect.

        Raises:
            Refused: a status of 400 to 499 that is not in `BUSY`; the sentence gives the server's reason.
            InfrastructureError: no answer, none in time, or only errors.
            Cancelled: `cancel` was called.
        """
        return self._ask("POST", path, body, 0 if once else RETRIES)

    def cancel(self) -> None:
        """Close every connection and refuse further requests: the server then stops working on them."""
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
                # not repeated: that would make a slow server slower
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
                failure += f" (a server's key is read from the environment variable {self._key})"
            if status not in BUSY:
                raise Refused(self._said(path, failure), status, _reason(text))
        raise InfrastructureError(self._said(path, failure))

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, str]:
        connection = self._connect(*self._address, timeout=self.timeout_s)
        with self._lock:
            self._open.add(connection)
        try:
            data = None if body is None else json.dumps(body)
            headers = self._headers | ({"Content-Type": "application/json"} if data else {})
            connection.connect()
            if self._cancelled.is_set():  # `cancel` can close only what is connected
                raise Cancelled
            connection.request(method, self._prefix + path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _said(self, path: str, what: str) -> str:
        return f"{self._flag} {self.url}: {path.partition('?')[0]}: {what}"


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reason(text: str) -> str:
    """The server's error message, without the JSON around it."""
    found = _json_or_text(text)
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    words = found if isinstance(found, str) else text
    return " ".join(words.split())[:REASON_CHARS] or "no reason given"
