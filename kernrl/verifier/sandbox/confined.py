"""The sandbox's fork server: imports what every child needs, then forks a confined child for each request.

What a child reads and writes goes over the socket that came with the request and never passes through the fork server.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernrl
from kernrl.verifier.rpc.fork_loop import freeze_memory, serve_forks
from kernrl.verifier.rpc.frames import Channel
from kernrl.verifier.rpc.processes import die_with_parent, ignore_interrupts
from kernrl.verifier.sandbox import isolation, large_pages

DEVICES = ("/dev/null", "/dev/zero")


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Entry of the process: leave the caller's namespaces, import, replace the file system, serve.

    `settings`: the child's `module`, which provides `prepare(settings)`, run once here, and `handle(channel)`, run in each
    child; its own `settings`; and `walls`.
    """
    ignore_interrupts()
    walls = isolation.Walls(**settings["walls"])
    entered = isolation.enter_namespaces(walls.require)
    # the pid namespace applies from this fork on; the outer process only waits
    inner = os.fork()
    if inner:
        control.close()
        _, status = os.waitpid(inner, 0)
        os._exit(1 if status else 0)
    die_with_parent()
    server = ConfinedServer(settings["module"], settings["settings"], walls, entered)
    serve_forks(control, server.child)


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


class ConfinedServer:
    """What every child shares: the imported module, the private root, and how to confine a child."""

    def __init__(self, module: str, settings: dict[str, Any], walls: isolation.Walls, entered: dict[str, bool]) -> None:
        """Imports, and replaces this process's file system."""
        imported = importlib.import_module(module)
        imported.prepare(settings)
        self.handle: Callable[[Channel], None] = imported.handle
        paths = library_paths()
        self.walls = replace(walls, read_only=paths)
        self.private_mounts = entered["mount"]
        self._namespaces = isolation.PidNamespaces() if entered["pid"] else None
        self.base_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise RuntimeError(f"the fork server has {threads} threads, and a fork keeps only one")
        isolation.filter_program(walls.may_execute, 1)
        freeze_memory()
        gc.disable()
        large_pages.use_large_pages()
        if self.private_mounts:
            # this package, if installed beside torch, would bring worked solutions and the held-out tasks within reach
            isolation.enter_private_root(paths, DEVICES, hidden=(str(Path(kernrl.__file__).resolve().parent),))

    def child(self, request: dict[str, Any]) -> ConfinedChild:
        """The child of one request; the next fork has a pid namespace of its own."""
        child = ConfinedChild(self)
        if self._namespaces:
            self._namespaces.renew()
        return child


class ConfinedChild:
    """One child: its scratch folder, and what it does."""

    def __init__(self, server: ConfinedServer) -> None:
        self._server = server
        self._tmp = isolation.SCRATCH if server.private_mounts else tempfile.mkdtemp(prefix="kernrl-")

    def run(self, descriptors: Sequence[int]) -> None:
        """In the child: keep the channel and a bounded log of what was inherited, confine, then handle the request."""
        channel, log = descriptors
        tmp, server = self._tmp, self._server
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        channel = os.dup2(channel, 3)
        os.closerange(4, 1 << 16)
        # writing to a file at its size limit, such as a full log, must be an error rather than kill the process
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        isolation.confine(server.walls, private_mounts=server.private_mounts, base_bytes=server.base_bytes, tmp=tmp)
        os.chdir(tmp)
        tempfile.tempdir = tmp
        os.environ.update(HOME=tmp, TMPDIR=tmp, TRITON_CACHE_DIR=f"{tmp}/triton", TORCHINDUCTOR_CACHE_DIR=f"{tmp}/inductor")
        server.handle(Channel(socket.socket(fileno=channel)))

    def clean_up(self) -> None:
        """In the fork server, once the child has ended."""
        if self._tmp != isolation.SCRATCH:
            shutil.rmtree(self._tmp, ignore_errors=True)
