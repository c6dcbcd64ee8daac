"""A quiet console is undone after each test; and fixtures of the tests that train: a tiny model, tasks, a toy verifier."""

import gc
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from support import EXHAUSTIVE, ROOT
from support.logged import Logged

from kernrl.console import log

if TYPE_CHECKING:
    from kernrl.verifier.funnel import StagedEvaluator
    from kernrl.verifier.verifier import HardenedVerifier

GPU = Path("/dev/nvidiactl").exists()

settings.register_profile("repeatable", derandomize=True, database=None)
if not EXHAUSTIVE:  # at night hypothesis looks for what it has not tried yet
    settings.load_profile("repeatable")


# where Inductor stands in for itself on a GPU: it compiles for a plain CPU, rather than try a dozen C++ programs first
os.environ |= {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}

gc.disable()  # while modules are imported and tests collected nothing is garbage, and looking for it takes CPU seconds


def pytest_collection_finish() -> None:
    """What there is by now stays: garbage is looked for in what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What has no test that is asked for need not even be imported: tests/gpu, and files that are slow as a whole.

    None leaves it to pytest.
    """
    chosen = config.option.markexpr
    if collection_path == Path(__file__).parent / "gpu":
        return True if "not gpu" in chosen else None
    if "not slow" in chosen and collection_path.suffix == ".py":
        return True if "\npytestmark = pytest.mark.slow" in collection_path.read_text(encoding="utf-8") else None
    return None


@pytest.fixture(autouse=True)
def audible() -> Iterator[None]:
    """`--quiet` in one test is not for the next one in the same process."""
    log.quiet = False
    yield
    log.quiet = False


@pytest.fixture(autouse=True)
def known_draws() -> None:
    """Tests that seed nothing draw the same, whatever ran before them; torch is not imported for those without it."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) and hasattr(torch, "default_generator"):
        # without a GPU torch.manual_seed writes three tracebacks down, for when there will be devices to be seeded
        (torch.manual_seed if GPU else torch.default_generator.manual_seed)(0)


@pytest.fixture
def logged() -> Iterator[Logged]:
    """What is logged in the test."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Processes that the verifier starts are forks of one that has imported torch and triton; with a GPU they are new ones."""
    if GPU:
        yield
        return
    from support import warm_processes

    with warm_processes.started_as_forks():
        yield
    warm_processes.close()


@pytest.fixture(scope="module")
def new_processes() -> Iterator[None]:
    """Processes that the verifier starts are new ones, as they are for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernrl.verifier.rpc.processes.subprocess", subprocess)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny policy with fresh weights; read only."""
    from support.tiny import save_tiny_policy

    return save_tiny_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of four tasks."""
    from support.tiny import tiny_tasks

    from kernrl.tasks.rows import write_tasks

    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path, tiny_tasks())
    return path


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of pairs for `kernrl sft`."""
    from support.toy_runs import write_pairs

    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.jsonl")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Folder of machine code that all processes share: many a kernel is in several fixtures.

    It is kept from one run to the next, as Triton keeps what it compiles, until something of what compiles here changes;
    at night all is compiled anew.
    """
    if EXHAUSTIVE or not hasattr(pytestconfig, "cache"):
        own = tmp_path_factory.getbasetemp()
        return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    verifier = ROOT / "kernrl" / "verifier"
    sources = [*sorted((verifier / "compile").glob("*.py")), verifier / "base" / "compat.py", verifier / "base" / "devices.py"]
    kept = pytestconfig.cache.mkdir("compiled") / sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    for folder in kept.parent.iterdir():
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)
    return kept


@pytest.fixture(scope="session")
def cpu_verifier(fork_servers: Callable[[pytest.MonkeyPatch], None], compiled: Path) -> "Iterator[HardenedVerifier]":
    """A verifier as it is without a GPU, which keeps no verdicts; shared, since its processes take CPU seconds to start."""
    from support.suite import known_seeds

    from kernrl.config import VerifierConfig
    from kernrl.verifier.verifier import HardenedVerifier

    with known_seeds(), pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        made = HardenedVerifier(VerifierConfig(device="cpu", cache=False, workers=2))
        made.evaluator.cache_dir = compiled
        made.evaluator.start()
    with made:
        yield made


@pytest.fixture(scope="session")
def cpu_evaluator(cpu_verifier: "HardenedVerifier") -> "StagedEvaluator":
    """The stages of `cpu_verifier`, which judge every time that they are asked."""
    return cpu_verifier.evaluator


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[Callable[[pytest.MonkeyPatch], None]]:
    """Lets verifiers borrow fork servers, which run until the tests end."""
    from support import kept_fork_servers

    yield kept_fork_servers.borrow
    kept_fork_servers.close()


@pytest.fixture
def warm(fork_servers: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifiers of the test need not start processes that import torch and triton, if a test before it had some."""
    fork_servers(monkeypatch)


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch):
    """The verifier of every training stage, which judges by `toy_runs.judge` and remembers what it was asked."""
    from support import toy_runs
    from support.tiny import FakeVerifier

    from kernrl.training import session

    fake = FakeVerifier(toy_runs.judge)
    monkeypatch.setattr(session, "open_verifier", lambda config: fake)
    return fake


@pytest.fixture(autouse=True)
def no_word_while_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says after some seconds would come and go with the load of the machine."""
    monkeypatch.setattr("kernrl.console.FIRST_S", 3600.0)
