"""The verifier on a real Ray: two nodes on this machine, one of which is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support import TESTS, suite

from kernrl import cli
from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.pool.ray import Cluster, RayActor, RayFront, RayGpu, wait_for_any
from kernrl.verifier.pool.ray_actor import Actor
from kernrl.verifier.verifier import HardenedVerifier

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

TASK = suite.fixture_task("mish_chain")
GOOD = (TESTS / "honest" / "mish_chain_flat.py").read_text()


def variants(count: int) -> list[str]:
    """The same candidate in as many texts, none of which any cache knows."""
    return [f"# {n}\n{GOOD}" for n in range(count)]


class FakeGpu(Actor):
    """A `GpuActor` without a GPU. Pickled whole, since Ray's workers do not see the tests."""

    def __init__(self, log: str, model: str = "a GPU"):
        self.log, self.model = Path(log), model

    def about(self) -> Any:
        return {"gpu": self.model, "uuid": os.environ["CUDA_VISIBLE_DEVICES"], "pid": str(os.getpid())}, None

    def seed(self, key: str) -> int:
        with self.log.open("a") as file:
            file.write(f"{key}\n")
        if key == "fault":
            os._exit(1)
        if key == "no task":
            raise UsageError("the reference does not run")
        if key == "no lane":
            raise InfrastructureError("the judge process failed")
        if key == "a bug":
            raise KeyError("what")
        return len(key)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster as Nodes

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=2, num_gpus=1)
    made.doomed = made.add_node(num_cpus=2, num_gpus=1)
    ray.init(address=made.address, namespace="kernrl", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def cluster(nodes: Any) -> Iterator[Cluster]:
    made = Cluster("ray")
    yield made
    made.close()


def gpu_actors(cluster: Cluster, log: Path, count: int = 2) -> list[RayActor[Any]]:
    return wait_for_any([cluster.start(FakeGpu, (str(log),), 4, num_cpus=0, num_gpus=1) for _ in range(count)])


def test_an_actor_has_a_gpu_of_its_own_and_says_what_went_wrong(cluster: Cluster, tmp_path: Path) -> None:
    actors = gpu_actors(cluster, tmp_path / "log")
    assert len({actor.about[0]["pid"] for actor in actors}) == 2
    gpu = RayGpu(actors[0])
    assert gpu.seed("a key") == 5
    assert gpu.load() == 0
    with pytest.raises(UsageError, match="the reference does not run"):
        gpu.seed("no task")
    with pytest.raises(InfrastructureError, match="the judge process failed"):
        gpu.seed("no lane")
    with pytest.raises(InfrastructureError, match=r"a Ray worker failed.*what"):
        gpu.seed("a bug")
    assert actors[0].ready


def test_a_call_that_kills_its_worker_is_not_repeated_and_the_worker_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    first, second = gpu_actors(cluster, tmp_path / "log")
    before = first.about[0]["pid"]
    with pytest.raises(InfrastructureError, match="a Ray worker is gone"):
        RayGpu(first).seed("fault")
    gpus = [RayGpu(first), RayGpu(second)]
    assert min(gpus, key=RayGpu.load).seed("elsewhere") == 9
    first.wait(60)
    assert first.about[0]["pid"] != before
    assert gpus[0].seed("again") == 5
    assert (tmp_path / "log").read_text().split() == ["fault", "elsewhere", "again"]


def test_a_call_to_an_actor_that_has_been_ended_fails_at_once(cluster: Cluster, tmp_path: Path) -> None:
    [actor, _] = gpu_actors(cluster, tmp_path / "log")
    actor.close()
    with pytest.raises(InfrastructureError, match="it has been ended"):
        actor.ask(FakeGpu.seed, "one")
    assert not (tmp_path / "log").exists()


def test_gpus_of_another_model_are_left_alone(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = iter(["one GPU", "another GPU"])
    real = cluster.start
    monkeypatch.setattr(
        cluster, "start", lambda *a, **k: real(FakeGpu, (str(tmp_path / "log"), next(models)), 4, num_cpus=0, num_gpus=1)
    )
    gpus = cluster.gpus(VerifierConfig(), None, redraw_parameters=True)
    assert [gpu.gpu_info["gpu"] for gpu in gpus] == ["one GPU"]


def test_an_actor_that_cannot_start_says_why(cluster: Cluster) -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise InfrastructureError("no sandbox here")

    actor = cluster.start(Broken, (), 1, num_cpus=0)
    with pytest.raises(InfrastructureError, match=r"a Ray worker cannot start: .*no sandbox here"):
        actor.wait(60)


def test_verdicts_are_those_of_this_machine_and_a_node_that_dies_loses_none(nodes: Any, tmp_path: Path) -> None:
    config = VerifierConfig(device="cpu", executor="ray", cache_dir=tmp_path, cache=False)
    with HardenedVerifier(config) as verifier:
        assert verifier.evaluator.workers == 2
        right = verifier.verify(TASK, GOOD)
        assert right.correct, right.reason
        assert right.timing
        assert right.timing.kind == "modelled"
        rejected = verifier.verify(TASK, GOOD.replace("def forward(self", "def forwards(self"))
        assert rejected.status is Status.TRACE_ERROR, rejected.reason
        front = verifier.evaluator.front
        assert isinstance(front, RayFront)
        deadline = time.monotonic() + 60
        while not all(actor.ready for actor in front.actors) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len([actor for actor in front.actors if actor.ready]) == 2

        candidates = iter(variants(400))
        while all(actor.ready for actor in front.actors):  # until a call is made that the dead node does not answer
            found = {}
            pairs = [(TASK, candidate) for candidate in islice(candidates, 8)]
            assert pairs, "nobody has noticed that a node is gone"
            for done, (position, verdict) in enumerate(verifier.verify_many(pairs), start=1):
                found[position] = verdict
                if done == 2 and nodes.doomed:
                    nodes.remove_node(nodes.doomed, allow_graceful=False)
                    nodes.doomed = None
            assert set(found) == set(range(8))
            assert {v.status for v in found.values()} == {Status.CORRECT}, [v.reason for v in found.values()]
        assert len([actor for actor in front.actors if actor.ready]) == 1


def test_without_a_cluster_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "kernrl", "verify", "heldout#1", "-", "--device", "cpu", "--verifier"]
    impatient = {**os.environ, "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "1", "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": "1"}
    ended = subprocess.run(
        [*command, "ray://127.0.0.1:1"], input="no code", env=impatient, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 3
    assert "--executor ray://127.0.0.1:1: no Ray cluster answers" in ended.stderr
    assert cli.run([*command[3:], "spark"]) == 2
    assert "--executor should be" in capsys.readouterr().err


TERMINATED = """
import os, signal
from kernrl.verifier.pool.ray import Cluster
signal.signal(signal.SIGTERM, signal.default_int_handler)
cluster = Cluster("ray")
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    cluster.close()
    print("in order")
"""


def test_a_signal_ends_a_program_with_ray_in_order() -> None:
    """Ray's own handler of SIGTERM aborts the process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, env=environment, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "in order\n"), ended.stderr
