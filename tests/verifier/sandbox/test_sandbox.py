"""Each layer of the sandbox, tested by a child that attacks it; and the next child finds nothing changed."""
# ruff: noqa: E501  (programs are quoted as models write them)

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import TESTS

from kernrl.errors import InfrastructureError
from kernrl.verifier.sandbox.isolation import LARGE_PAGES, NOBODY, features
from kernrl.verifier.sandbox.sandbox import End, Sandbox, Walls

pytestmark = pytest.mark.usefixtures("new_processes")

HERE = features()
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def sandbox():
    box = Sandbox("support.hostile_child", walls=Walls(memory_bytes=256 << 20, cpu_s=4, file_bytes=1 << 20))
    yield box
    box.close()


def attempt(box: Sandbox, body: str, timeout_s: float = 10.0) -> tuple[str | None, End]:
    """What a child running `body` as a function says, and how it ended."""
    lines = "\n    ".join(body.strip().splitlines())
    with box.open(timeout_s) as session:
        session.send(f"def attempt():\n    {lines}\n".encode())
        answer = session.recv()
        return (json.loads(answer) if answer is not None else None), session.end()


def needs(*layers: str):
    missing = [name for name in layers if not HERE.get(name, (False, ""))[0]]
    return pytest.mark.skipif(bool(missing), reason=f"this kernel has no {', '.join(missing)}")


def test_an_honest_child_answers(sandbox):
    said, end = attempt(sandbox, "return 1 + 1")
    assert said == "did: 2"
    assert end.ok


def test_features_load_no_torch():
    code = "import sys; from kernrl.verifier.sandbox.sandbox import features; f = features(); print('torch' in sys.modules, len(f))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, count = done.stdout.split()
    assert loaded == "False"
    assert int(count) >= 8


def test_a_child_knows_its_user_without_the_list_of_users(sandbox):
    said, _ = attempt(sandbox, "import getpass, pwd\npwd.getpwuid = None\nreturn getpass.getuser()")
    assert said == "did: kernrl"


@needs("seccomp")
@pytest.mark.parametrize(
    "body",
    [
        "import socket; return socket.socket(socket.AF_INET).fileno()",
        "import socket; return socket.socket(socket.AF_UNIX).fileno()",
        "import os; return os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; return os.posix_spawn('/bin/true', ['true'], {})",
        "import subprocess; return subprocess.run(['/bin/true']).returncode",
        "import os; return os.pidfd_open(1)",
    ],
)
def test_no_network_and_no_processes(sandbox, body):
    said, end = attempt(sandbox, body)
    assert said is not None
    assert said.startswith(("PermissionError", "BlockingIOError"))
    assert end.ok


@needs("seccomp")
@pytest.mark.parametrize("number", [101, 310, 311, 165, 272, 308, 321, 250, 323, 298, 246, 435])
def test_dangerous_system_calls_are_refused(sandbox, number):
    """ptrace, process_vm_*, mount, unshare, setns, bpf, keyctl, userfaultfd, perf_event_open, kexec_load, clone3."""
    said, _ = attempt(
        sandbox,
        f"import ctypes; c = ctypes.CDLL(None, use_errno=True); return c.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno()",
    )
    assert said in ("did: (-1, 1)", "did: (-1, 38)")


@needs("seccomp")
def test_threads_are_allowed(sandbox):
    said, _ = attempt(sandbox, "import threading; t = threading.Thread(target=print); t.start(); t.join(); return 'ran'")
    assert said == "did: ran"


def test_the_parent_cannot_be_killed(sandbox):
    said, _ = attempt(sandbox, f"import os, signal; os.kill({os.getpid()}, signal.SIGKILL); return 'killed'")
    assert said is not None
    assert said.startswith(("PermissionError", "ProcessLookupError"))
    said, _ = attempt(sandbox, "import os, signal; os.kill(-1, signal.SIGKILL); return 'killed'")
    assert said is None or said.startswith(("PermissionError", "ProcessLookupError"))
    assert attempt(sandbox, "return 'alive'")[0] == "did: alive"


@needs("landlock")
def test_the_repository_and_the_host_are_out_of_reach(sandbox):
    for path in (__file__, "/etc/passwd", "/proc/self/mem", "/root", str(Path.home() / ".bashrc"), "/dev/shm"):
        said, _ = attempt(
            sandbox, f"import os; return os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read(1)"
        )
        assert said is not None
        assert said.split(":")[0] in ("FileNotFoundError", "PermissionError", "NotADirectoryError"), path


@needs("landlock")
def test_the_libraries_can_be_read_and_not_written(sandbox):
    said, _ = attempt(sandbox, "import json, colorsys; return colorsys.__file__")
    assert said is not None
    assert said.startswith("did: ")
    said, _ = attempt(sandbox, "import json; return open(json.__file__, 'a').write('x')")
    assert said is not None
    assert said.split(":")[0] in ("OSError", "PermissionError")


@pytest.mark.skipif(not Path(LARGE_PAGES[0]).exists(), reason="this kernel has no large pages")
def test_a_program_may_read_whether_there_are_large_pages(sandbox):
    said, _ = attempt(sandbox, f"return [open(path).read() for path in {LARGE_PAGES!r}]")
    assert said == f"did: {[Path(path).read_text() for path in LARGE_PAGES]}"


def test_tmp_is_private_and_bounded(sandbox):
    said, _ = attempt(sandbox, "open('mine', 'w').write('x'); import os; return sorted(os.listdir('.'))")
    assert said == "did: ['mine']"
    assert attempt(sandbox, "import os; return os.listdir('.')")[0] == "did: []"
    said, _ = attempt(sandbox, "open('big', 'wb').write(bytes(2 << 20)); return 'wrote'")
    assert said is not None
    assert said.startswith("OSError: [Errno 27]")


def test_memory_is_capped(sandbox):
    said, end = attempt(sandbox, "return len(bytearray(1 << 30))")
    assert said == "MemoryError: "
    assert end.ok


def test_the_environment_and_descriptors_are_clean(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    said, _ = attempt(sandbox, "import os; return 'SECRET_TOKEN' in os.environ, os.environ['HOME']")
    assert said == "did: (False, '/scratch')"
    body = (
        "import os\nn = 0\nfor fd in range(1024):\n    try:\n        os.fstat(fd); n += 1\n    except OSError: pass\nreturn n"
    )
    # stdin, stdout, stderr, and the channel
    assert attempt(sandbox, body)[0] == "did: 4"


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_root_is_dropped(sandbox):
    said, _ = attempt(sandbox, "import os; return os.getuid(), os.geteuid(), os.getgid(), os.getgroups()")
    assert said == f"did: ({NOBODY}, {NOBODY}, {NOBODY}, [])"
    said, _ = attempt(sandbox, "import os; os.setuid(0); return 'root'")
    assert said is not None
    assert said.startswith("PermissionError")


def test_a_flood_of_output_is_bounded(sandbox):
    said, end = attempt(sandbox, "import sys\nfor _ in range(1000): sys.stdout.write('y' * 65536); sys.stdout.flush()")
    assert said is not None
    assert said.startswith("OSError: [Errno 27]")
    assert len(end.log) <= 4096


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", ["import time; time.sleep(60)", "while True: pass", "import signal; signal.signal(15, 1); signal.pause()"]
)
def test_a_hang_ends_at_its_deadline(sandbox, body):
    said, end = attempt(sandbox, body, timeout_s=1.0)
    assert said is None
    assert end.timed_out
    assert end.code == -9


def test_death_is_told_by_signal(sandbox):
    _, end = attempt(sandbox, "import ctypes; ctypes.string_at(0)")
    assert end.code == -11
    _, end = attempt(sandbox, "import os; os._exit(3)")
    assert (end.code, end.timed_out) == (3, False)


def test_a_lie_in_the_frame_is_nothing(sandbox):
    """A child that writes nonsense to its channel, or a frame without end, has not answered."""
    for payload in (r"b'\xff\xff\xff\xff'", r"b'\x10\x00\x00\x00short'"):
        said, end = attempt(sandbox, f"import os; os.write(3, {payload}); os._exit(0)")
        assert said is None
        assert end.code == 0


def test_many_at_once(sandbox):
    answers: list[str | None] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(attempt(sandbox, f"import time; time.sleep(0.2); return {i}")[0]))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == sorted(f"did: {i}" for i in range(8))


def test_a_dead_fork_server_is_replaced():
    box = Sandbox("support.hostile_child", walls=Walls())
    try:
        assert attempt(box, "return 1")[0] == "did: 1"
        server = box.pid
        assert server is not None
        with box.open(10) as session:
            os.kill(server, signal.SIGKILL)
            # the child, which waits for a program, ends only because its server has
            assert session.recv() is None
            with pytest.raises(InfrastructureError):
                session.end()
        assert attempt(box, "return 3")[0] == "did: 3"
        assert box.pid != server
    finally:
        box.close()


def test_a_closed_one_starts_nothing_any_more():
    box = Sandbox("support.hostile_child", walls=Walls(memory_bytes=256 << 20))
    box.start()
    box.close()
    with pytest.raises(InfrastructureError, match="closed"):
        box.open(5.0)


def test_a_missing_wall_is_an_error_when_required():
    """The strict sandbox starts exactly where every layer holds."""
    box = Sandbox("support.hostile_child", walls=Walls(require=True))
    try:
        if all(ok for ok, _ in HERE.values()):
            assert attempt(box, "return 'ran'")[0] == "did: ran"
        else:
            with pytest.raises(InfrastructureError):
                attempt(box, "return 'ran'")
    finally:
        box.close()


@pytest.mark.skipif(not ROOT, reason="needs root to become an ordinary user")
@needs("landlock")
def test_the_walls_hold_for_an_ordinary_user_too():
    """The namespaces are then reached through a user namespace, and capabilities are dropped in place of the user."""
    program = (
        "import os, socket, sys\n"
        "sys.path[:0] = sys.argv[1:]\n"
        "from test_sandbox import attempt, Sandbox, Walls\n"
        "box = Sandbox('support.hostile_child', walls=Walls())\n"
        "for body in ('return 1', 'import os; return os.fork()', 'return open(\"/etc/passwd\").read()', 'import os; return os.getuid()'):\n"
        "    print(attempt(box, body)[0])\n"
        "box.close()\n"
    )
    where = TESTS.parent
    if any(not (p.stat().st_mode & 1) for p in [Path(sys.executable).resolve(), *Path(sys.executable).resolve().parents]):
        pytest.skip("the interpreter lies where an ordinary user cannot go")
    done = subprocess.run(
        [sys.executable, "-c", program, str(where), str(where / "tests"), str(where / "tests/verifier/sandbox")],
        capture_output=True,
        text=True,
        timeout=120,
        user=NOBODY,
        group=NOBODY,
        check=False,
    )
    assert done.stdout.splitlines()[:3] == [
        "did: 1",
        "PermissionError: [Errno 1] Operation not permitted",
        "FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'",
    ], done.stderr


def test_the_channel_is_a_socket_pair_of_its_own(sandbox):
    said, _ = attempt(sandbox, "import os, stat; return stat.S_ISSOCK(os.fstat(3).st_mode)")
    assert said == "did: True"
