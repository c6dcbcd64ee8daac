"""Frames: what one end sends the other receives, and nothing that an untrusted end sends does harm."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kernrl.verifier.rpc.frames import HEADER, Channel, ObjectChannel


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_frames_keep_their_bounds(ends: tuple[socket.socket, socket.socket]) -> None:
    payloads = [b"", b"a", bytes(range(256)) * 20_000, b"{}"]
    sender, receiver = map(Channel, ends)
    thread = threading.Thread(target=lambda: [sender.send(payload) for payload in payloads])
    thread.start()
    assert [receiver.recv() for _ in payloads] == payloads
    thread.join()
    sender.close()
    assert receiver.recv() is None


@pytest.mark.parametrize("sent", [b"", b"\x01", HEADER.pack(5) + b"four", HEADER.pack(1 << 20) + bytes(9)])
def test_a_frame_that_is_cut_short_is_none(ends: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    ends[0].sendall(sent)
    ends[0].close()
    assert Channel(ends[1]).recv() is None


def test_a_frame_over_the_limit_is_refused_before_it_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(HEADER.pack(101) + bytes(101))
    with pytest.raises(ValueError, match="101 bytes"):
        Channel(ends[1], max_bytes=100).recv()
    assert ends[1].recv(200) == bytes(101)


def test_bytes_are_never_unpickled(ends: tuple[socket.socket, socket.socket]) -> None:
    sent = b"cos\n_exit\n(I3\ntR."  # pickle for os._exit(3)
    Channel(ends[0]).send(sent)
    assert Channel(ends[1]).recv() == sent


def test_readable_tells_data_and_the_end_from_silence(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = Channel(ends[0]), Channel(ends[1])
    assert not ours.readable(0.01)
    theirs.send(b"")
    assert ours.readable(5)
    assert ours.recv() == b""
    theirs.close()
    assert ours.readable(5), "the end is news too"
    ours.close()
    with pytest.raises(OSError, match="closed"):
        ours.readable(0)


def test_objects_arrive_equal_and_the_end_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ObjectChannel(ends[0]), ObjectChannel(ends[1])
    sent = {"a": [1, 2.5, None], ("k",): b"x"}
    ours.send(sent)
    assert theirs.recv() == sent
    ours.close()
    with pytest.raises(EOFError):
        theirs.recv()


def test_shutting_down_wakes_a_reader(ends: tuple[socket.socket, socket.socket]) -> None:
    channel, ended = ObjectChannel(ends[0]), threading.Event()

    def read() -> None:
        with pytest.raises(EOFError):
            channel.recv()
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    channel.shut_down()
    assert ended.wait(10)
    thread.join()
