"""Messages over a socket as length-prefixed frames: bytes with a size limit, or pickled objects between trusted processes."""

from __future__ import annotations

import pickle
import select
import socket
import struct
from typing import Any

HEADER = struct.Struct("=I")
MAX_FRAME_BYTES = 64 << 20
"""The largest frame accepted from an untrusted process."""

_MAX_OBJECT_BYTES = (1 << 32) - 1
_CHUNK_BYTES = 1 << 20


class Channel:
    """Frames of bytes, used by both ends. Whatever comes out is untrusted unless the other end is known to be trusted."""

    def __init__(self, sock: socket.socket, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.sock = sock
        self._max_bytes = max_bytes

    def send(self, payload: bytes) -> None:
        """Send one frame. Raises OSError when the other end is gone, struct.error for 4 GiB and more."""
        self.sock.sendall(HEADER.pack(len(payload)) + payload)

    def recv(self) -> bytes | None:
        """The next frame; None when the other end is gone. Raises ValueError for a frame over the limit, and OSError."""
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        (size,) = HEADER.unpack(header)
        if size > self._max_bytes:
            raise ValueError(f"a frame of {size} bytes")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes | None:
        buffer = bytearray()  # grows as data arrives: a size that is only claimed costs no memory
        while len(buffer) < size:
            part = self.sock.recv(min(size - len(buffer), _CHUNK_BYTES))
            if not part:
                return None
            buffer += part
        return bytes(buffer)

    def readable(self, timeout_s: float) -> bool:
        """Whether data arrives, or the other end goes, within the timeout. Raises OSError on a closed channel."""
        if self.sock.fileno() < 0:
            raise OSError("the channel is closed")
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(1e3 * timeout_s))

    def close(self) -> None:
        self.sock.close()


class ObjectChannel:
    """Pickled objects, between trusted processes only: unpickling can run any code that the sender chooses."""

    def __init__(self, sock: socket.socket) -> None:
        self._frames = Channel(sock, max_bytes=_MAX_OBJECT_BYTES)
        self.readable = self._frames.readable
        self.close = self._frames.close

    def send(self, message: Any) -> None:
        """Send one object. Raises OSError when the other end is gone."""
        self.send_packed(pickle.dumps(message))

    def send_packed(self, message: bytes) -> None:
        """Send an object that is pickled already."""
        self._frames.send(message)

    def recv(self) -> Any:
        """The next object. Raises EOFError or OSError when the other end is gone."""
        payload = self._frames.recv()
        if payload is None:
            raise EOFError
        return pickle.loads(payload)

    def shut_down(self) -> None:
        """Signal the end to both sides, waking a thread that waits in `recv`."""
        self._frames.sock.shutdown(socket.SHUT_RDWR)
