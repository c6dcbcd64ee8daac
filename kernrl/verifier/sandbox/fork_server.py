"""The fork server inside the sandbox: imports once what every child needs, then forks one confined child a request.

It answers two callers' questions only: where to fork, and how a child ended. What a child reads and writes goes over the
channel that came with the request and never passes through here.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernrl
from kernrl.verifier.sandbox import isolation, large_pages

HEADER = struct.Struct("=I")
MAX_FRAME_BYTES = 64 << 20
DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")


class Channel:
    """Length-prefixed frames over a socket, used by both ends."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, payload: bytes) -> None:
        self.sock.sendall(HEADER.pack(len(payload)) + payload)

    def recv(self) -> bytes | None:
        """The next frame; None when the other end is gone. Raises ValueError on a frame over the limit."""
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        (size,) = HEADER.unpack(header)
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes | None:
        buffer = bytearray()
        while len(buffer) < size:
            part = self.sock.recv(min(size - len(buffer), 1 << 20))
            if not part:
                return None
            buffer += part
        return bytes(buffer)


def library_paths() -> tuple[str, ...]:
    """What a child may read: the interpreter's libraries and the packages it has loaded, never this project's tree."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    paths |= {str(Path(p).parent) for p in (sysconfig.get_config_var("DESTSHARED"), shutil.__file__) if p}
    paths.add(str(Path(sys.base_prefix) / "lib"))
    for name in ("torch", "triton", "numpy"):
        module = sys.modules.get(name)
        if module is not None and module.__file__:
            paths.add(str(Path(module.__file__).parent.parent))
    paths |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime"}
    found = sorted(os.path.realpath(p) for p in paths if p and Path(p).exists())
    # links such as /lib -> /usr/lib must stay reachable by the name that programs use
    found += [p for p in ("/lib", "/lib64") if Path(p).is_symlink()]
    return tuple(p for p in found if not any(p != other and p.startswith(other + "/") for other in found))


class Zygote:
    """State of the fork server: its children, their deadlines, and how to confine them."""

    def __init__(self, config: dict[str, Any], control: socket.socket, entered: dict[str, bool]) -> None:
        self.control = control
        self.entered = entered
        self.handle = importlib.import_module(config["module"])
        self.handle.prepare(config["settings"])
        paths = library_paths()
        self.walls = isolation.Walls(**config["walls"])
        self.walls = replace(self.walls, read_only=paths)
        self.namespaces = isolation.PidNamespaces() if entered["pid"] else None
        self.base_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise RuntimeError(f"the zygote has {threads} threads, and a fork keeps only one")
        gc.collect()
        gc.freeze()
        gc.disable()
        large_pages.use_large_pages()
        if entered["mount"]:
            # installed beside torch, this package would bring worked solutions and the held-out tasks into reach
            isolation.enter_private_root(paths, DEVICES, hidden=(str(Path(kernrl.__file__).resolve().parent),))
        self.children: dict[int, tuple[float, int, str]] = {}

    def serve(self) -> None:
        """Fork on request until the control socket closes; then end every child."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.control.send(json.dumps({"entered": self.entered}).encode())
        while True:
            now = time.monotonic()
            nearest = min((deadline for deadline, _, _ in self.children.values()), default=now + 60)
            ready, _, _ = select.select([self.control, wake_read], [], [], max(0.0, nearest - now))
            if wake_read in ready:
                os.read(wake_read, 4096)
            if self.control in ready and not self._accept():
                break
            self._reap()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def _accept(self) -> bool:
        message, ancillary, _, _ = self.control.recvmsg(64, socket.CMSG_SPACE(3 * 4))
        if not message:
            return False
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        channel, log, status = fds
        deadline = time.monotonic() + struct.unpack("=d", message)[0]
        tmp = isolation.SCRATCH if self.entered["mount"] else tempfile.mkdtemp(prefix="kernrl-")
        if self.namespaces:
            self.namespaces.renew()
        pid = os.fork()
        if pid == 0:
            self._child(channel, log, tmp)
        os.close(channel)
        os.close(log)
        self.children[pid] = (deadline, status, tmp)
        return True

    def _child(self, channel: int, log: int, tmp: str) -> None:
        """Become the child: nothing inherited but the channel and a bounded log; every wall up; then the handler."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            channel = os.dup2(channel, 3)
            os.closerange(4, 1 << 16)
            # a file over its size limit, or a log that is full, shall be an error and not a death
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            isolation.confine(self.walls, private_mounts=self.entered["mount"], base_bytes=self.base_bytes, tmp=tmp)
            os.chdir(tmp)
            tempfile.tempdir = tmp
            os.environ.update(HOME=tmp, TMPDIR=tmp, TRITON_CACHE_DIR=f"{tmp}/triton", TORCHINDUCTOR_CACHE_DIR=f"{tmp}/inductor")
            self.handle.handle(Channel(socket.socket(fileno=channel)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        now = time.monotonic()
        for pid, (deadline, status, tmp) in list(self.children.items()):
            late = now >= deadline
            if late:
                os.kill(pid, signal.SIGKILL)
            done, wait_status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if not done:
                continue
            del self.children[pid]
            end = {"timeout": late, "code": os.waitstatus_to_exitcode(wait_status)}
            with contextlib.suppress(OSError):  # the asker may have gone
                os.write(status, json.dumps(end).encode())
            os.close(status)
            if tmp != isolation.SCRATCH:
                shutil.rmtree(tmp, ignore_errors=True)


def main(config: dict[str, Any]) -> None:
    """Entry of the zygote's process: leave the caller's namespaces, import, close the file system off, serve."""
    control = socket.socket(fileno=config["control"])
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for who asks, who ends this one by going
        signal.signal(number, signal.SIG_IGN)
    entered = isolation.enter_namespaces(config["walls"]["require"])
    # the pid namespace holds from this fork on; the outer process only waits
    inner = os.fork()
    if inner:
        control.close()
        _, status = os.waitpid(inner, 0)
        os._exit(1 if status else 0)
    isolation._prctl(isolation._PR_SET_PDEATHSIG, signal.SIGKILL)
    Zygote(config, control, entered).serve()
