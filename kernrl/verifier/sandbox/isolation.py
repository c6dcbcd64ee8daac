"""The layers of confinement around untrusted code, each made with one or two Linux system calls through ctypes.

A fork server calls `enter_namespaces` and `enter_private_root` once; every child it forks calls `confine` before it reads any
untrusted byte. A layer that the kernel does not offer is skipped, or is an error under `require`; `features` says which ones
hold on this machine. Nothing heavier than ctypes is imported here, so that asking costs little.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import platform
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernrl.verifier.rpc.processes import die_with_parent, prctl

NOBODY = 65534
SCRATCH = "/scratch"
"""The one writable folder of a private root."""
LARGE_PAGES = tuple(f"/sys/kernel/mm/transparent_hugepage/{name}" for name in ("enabled", "hpage_pmd_size"))
"""What glibc reads before it asks for large pages: `ptxas` has a fifth of the page faults with them."""

_libc = ctypes.CDLL(None, use_errno=True)

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = {"network": _NEWNET, "mount": _NEWNS, "pid": _NEWPID, "ipc": _NEWIPC | _NEWUTS}
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38


@dataclass(frozen=True, slots=True)
class Walls:
    """What one kind of child may do. Bytes and seconds are its own, beyond what the fork inherits."""

    read_only: tuple[str, ...] = ()
    """Directories and files it may read; the rest of the file system is out of reach."""
    may_execute: bool = False
    """True for the trusted compiler, which runs `ptxas`; a candidate may start no process at all."""
    memory_bytes: int = 4 << 30
    cpu_s: int = 60
    file_bytes: int = 64 << 20
    require: bool = False
    """Whether a layer that this kernel does not offer is an error; otherwise it is skipped."""


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    args = [os.fsencode(v) if v is not None else None for v in (source, target, kind)]
    _check(_libc.mount(*args, ctypes.c_ulong(flags), os.fsencode(data) if data else None), f"mount {target}")


# --- once a fork server -----------------------------------------------------------------------------------------------


def enter_namespaces(require: bool) -> dict[str, bool]:
    """Leave the network, mount, pid and ipc namespaces of the caller; an ordinary user does so through a user namespace.

    The pid namespace applies from the next fork on. Returns which kinds were left.
    """
    uid, gid = os.getuid(), os.getgid()
    entered = dict.fromkeys(_NAMESPACES, False)
    if _libc.unshare(_NEWNET) < 0:
        if _libc.unshare(_NEWUSER) < 0:
            if require:
                raise OSError(ctypes.get_errno(), "this kernel allows no namespaces")
            return entered
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    for name, flag in _NAMESPACES.items():
        entered[name] = _libc.unshare(flag) == 0
    if require and not all(entered.values()):
        raise OSError(errno.EPERM, f"namespaces missing: {[n for n, ok in entered.items() if not ok]}")
    return entered


def enter_private_root(read_only: Sequence[str], devices: Sequence[str], hidden: Sequence[str] = ()) -> None:
    """Replace the file system by an empty one: `read_only` and `devices`, bound at their own paths, LARGE_PAGES, and SCRATCH.

    Directories of `hidden` that lie inside a bound one are empty there.
    """
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    # mounted over a folder that contains nothing that is to be bound
    places = [p for p in ("/tmp", "/mnt", "/srv", "/media", "/opt", "/run") if Path(p).is_dir()]
    root = Path(next(p for p in places if not any(q.startswith(p + "/") for q in read_only)))
    _mount("tmpfs", str(root), "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
    for path in [*read_only, *devices]:
        target = root / path.lstrip("/")
        if Path(path).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        _mount(path, str(target), None, _MS_BIND | _MS_REC)
        if path not in devices:
            # flags that the host has set on this mount must stay set, or the kernel refuses the change
            kept = os.statvfs(target).f_flag & (_MS_NOSUID | _MS_NODEV | 8 | 1024 | 2048 | 4096)
            flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | (kept & 8) | (kept & 3072)
            _mount("none", str(target), None, _MS_BIND | _MS_REMOUNT | flags)
    for path in hidden:
        target = root / path.lstrip("/")
        if target.is_dir():
            _mount("tmpfs", str(target), "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "size=4k,mode=0555")
    for path in LARGE_PAGES:
        with contextlib.suppress(OSError):
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            (root / path.lstrip("/")).write_text(Path(path).read_text())
    (root / SCRATCH.lstrip("/")).mkdir()
    (root / ".old").mkdir()
    number = {"x86_64": 155, "aarch64": 41}[platform.machine()]
    _check(_libc.syscall(number, os.fsencode(root), os.fsencode(root / ".old")), "pivot_root")
    os.chdir("/")
    _check(_libc.umount2(b"/.old", 2), "umount")
    os.rmdir("/.old")
    _mount("none", "/", None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


class PidNamespaces:
    """Gives each following fork a pid namespace of its own, so that killing one process ends all it started."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def renew(self) -> None:
        # a process may unshare its children's namespace only while that is its own, so go back to that first
        _check(_libc.setns(self._own, _NEWPID), "setns")
        _check(_libc.unshare(_NEWPID), "unshare")


# --- once a child ------------------------------------------------------------------------------------------------


def confine(walls: Walls, *, private_mounts: bool, base_bytes: int, tmp: str) -> None:
    """Confine this process for good. `base_bytes` is the address space that it began with."""
    steps: list[Callable[[], object]] = [
        lambda: _private_tmp(tmp) if private_mounts else None,
        lambda: _drop_user(tmp),
        die_with_parent,  # after the change of user, which clears it
        lambda: prctl(_PR_SET_DUMPABLE, 0),
        lambda: _limit(walls, base_bytes),
        lambda: prctl(_PR_SET_NO_NEW_PRIVS, 1),
        lambda: _landlock(walls, tmp),
        lambda: _seccomp(walls.may_execute),
    ]
    for step in steps:
        try:
            step()
        except OSError:
            if walls.require:
                raise


def _private_tmp(tmp: str) -> None:
    _check(_libc.unshare(_NEWNS), "unshare")
    _mount("tmpfs", tmp, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=64m,mode=0700")


def _drop_user(tmp: str) -> None:
    """Become nobody if started as root; in a user namespace, where no other user exists, give up every capability."""
    if os.geteuid() == 0:
        try:
            os.chown(tmp, NOBODY, NOBODY)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            return
        except OSError:
            if os.geteuid() != 0:
                raise
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    _check(_libc.capset(header, bytes(24)), "capset")


def _limit(walls: Walls, base_bytes: int) -> None:
    limits = {
        resource.RLIMIT_CPU: walls.cpu_s,
        resource.RLIMIT_FSIZE: walls.file_bytes,
        resource.RLIMIT_AS: base_bytes + walls.memory_bytes,
        resource.RLIMIT_NOFILE: 256,
        # counted over all processes of a user, so it must leave room for the other children's threads
        resource.RLIMIT_NPROC: 4096,
        resource.RLIMIT_CORE: 0,
    }
    for which, value in limits.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))


_READ, _LIST, _EXECUTE, _WRITE = 1 << 2, 1 << 3, 1 << 0, 1 << 1
_FILE_ACCESS = _READ | _EXECUTE | _WRITE | 1 << 14 | 1 << 15


def landlock_abi() -> int:
    """The version of Landlock in this kernel; 0 when it has none."""
    return max(0, _libc.syscall(444, None, 0, 1))


def _landlock(walls: Walls, tmp: str) -> None:
    """Reading is confined to `walls.read_only`, writing to `tmp`; TCP and signals to other processes are refused."""
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.ENOSYS, "Landlock is missing")
    # 13 kinds of access in version 1; REFER, TRUNCATE and device ioctls came later
    all_access = (1 << (13 + (abi >= 2) + (abi >= 3))) - 1 | (1 << 15 if abi >= 5 else 0)
    handled = struct.pack("=QQQ", all_access, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _check(_libc.syscall(444, handled, size, 0), "landlock_create_ruleset")
    read = _READ | _LIST | (_EXECUTE if walls.may_execute else 0)
    # mapping a shared library needs no EXECUTE right; starting a program does
    rules = [(path, read) for path in (*walls.read_only, *LARGE_PAGES)]
    rules += [("/dev/null", _READ | _WRITE), ("/dev/zero", _READ), (tmp, all_access & ~(1 << 0))]
    for path, access in rules:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not os.path.isdir(path):
            access &= _FILE_ACCESS
        _check(_libc.syscall(445, ruleset, 1, struct.pack("=Qi", access & all_access, handle), 0), f"landlock rule {path}")
        os.close(handle)
    _check(_libc.syscall(446, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


# Refused to every child. Numbers are those of x86-64 (linux/arch/x86/entry/syscalls/syscall_64.tbl).
_DENIED = {
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288, "socketpair": 53,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440, "kcmp": 312,
    "pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438, "tkill": 200, "rt_sigqueueinfo": 129,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "mknod": 133, "mknodat": 259,
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "keyctl": 250, "add_key": 248, "request_key": 249, "fanotify_init": 300,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "syslog": 103, "personality": 135,
    "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "sethostname": 170, "setdomainname": 171,
    # memory that outlives the process, or that its address-space limit does not count
    "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319, "memfd_secret": 447,
    "iopl": 172, "ioperm": 173, "setpriority": 141, "sched_setscheduler": 144, "move_pages": 279, "migrate_pages": 256,
}  # fmt: skip
_DENIED_START = {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322}
_CLONE, _CLONE3, _KILL, _TGKILL, _PRLIMIT64 = 56, 435, 62, 234, 302
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000


def _seccomp(may_execute: bool) -> None:
    """Install a filter that refuses listed calls. Threads stay allowed; processes only if the child may execute."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"no system call table for {platform.machine()}")
    program = filter_program(may_execute, os.getpid())
    code = ctypes.create_string_buffer(program)
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(header)
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), buffer, 0, 0), "seccomp")


@functools.cache
def filter_program(may_execute: bool, pid: int) -> bytes:
    """The filter for a process of that number. A fork server makes it once: all of its children are number 1."""
    load = lambda offset: (0x20, 0, 0, offset)  # noqa: E731
    equal = lambda value, yes, no: (0x15, yes, no, value)  # noqa: E731
    answer = lambda value: (0x06, 0, 0, value)  # noqa: E731
    refuse = answer(_ERRNO | errno.EPERM)
    program = [load(4), equal(0xC000003E, 1, 0), answer(_KILL_PROCESS), load(0), (0x35, 0, 1, 0x40000000), refuse]
    denied = list(_DENIED.values()) + ([] if may_execute else list(_DENIED_START.values()))
    for number in denied:
        program += [equal(number, 0, 1), refuse]
    # clone3 hides its flags behind a pointer; libc falls back to clone, whose flags can be read
    program += [equal(_CLONE3, 0, 1), answer(_ERRNO | errno.ENOSYS)]
    if not may_execute:
        program += [equal(_CLONE, 0, 4), load(16), (0x45, 0, 1, 0x10000), answer(_ALLOW), refuse]
    for number, first in ((_KILL, pid), (_TGKILL, pid), (_PRLIMIT64, 0)):
        if not (may_execute and number == _KILL):
            program += [equal(number, 0, 4), load(16), equal(first, 0, 1), answer(_ALLOW), refuse]
    program.append(answer(_ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


# --- what holds on this machine ----------------------------------------------------------------------------------

_PROBE = "import sys; sys.path.insert(0, sys.argv[1]); from kernrl.verifier.sandbox.isolation import probe; probe()"


def features() -> dict[str, tuple[bool, str]]:
    """Layer → (does it hold on this machine, a word on how). Tries each in a throw-away process; imports no torch."""
    root = str(Path(__file__).resolve().parents[3])
    command = [sys.executable, "-I", "-S", "-c", _PROBE, root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        return {"sandbox": (False, done.stderr.strip().splitlines()[-1] if done.stderr else "the probe died")}
    return {name: (bool(ok), detail) for name, (ok, detail) in json.loads(done.stdout).items()}


def probe() -> None:
    """Print as JSON which layers hold. Confines the process that calls it."""
    found: dict[str, tuple[bool, str]] = {}
    root = os.geteuid() == 0
    entered = enter_namespaces(require=False)
    how = "as root" if root else "through a user namespace"
    for name, ok in entered.items():
        found[f"{name} namespace"] = (ok, how if ok else "the kernel refuses it")

    def attempt(name: str, act: Callable[[], object], detail: str) -> None:
        try:
            act()
            found[name] = (True, detail)
        except OSError as error:
            found[name] = (False, str(error))

    if entered["mount"]:
        attempt("private root", lambda: enter_private_root(("/usr",), ("/dev/null",)), "only libraries are mounted")
        attempt("private scratch", lambda: _private_tmp(SCRATCH), "64 MiB in memory")
    scratch = SCRATCH if Path(SCRATCH).is_dir() else tempfile.mkdtemp(prefix="kernrl-")
    attempt("unprivileged user", lambda: _drop_user(scratch), f"uid {NOBODY}" if root else "all capabilities dropped")
    attempt("resource limits", lambda: _limit(Walls(), 1 << 40), "CPU, memory, processes, files, file size")
    attempt("no new privileges", lambda: prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl")
    attempt("landlock", lambda: _landlock(Walls(read_only=("/usr",)), scratch), f"ABI {landlock_abi()}")
    attempt("seccomp", lambda: _seccomp(may_execute=False), f"{len(_DENIED) + len(_DENIED_START)} system calls refused")
    print(json.dumps(found))
