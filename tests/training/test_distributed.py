"""Several processes train as one would, take up each other's checkpoints, and end together."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from support import EXHAUSTIVE
from support.tiny import FakeVerifier
from support.toy_runs import judge, losses, weights
from support.toy_runs import sft_arguments as sft
from support.vllm_stand_in import StandIn
from torch._C._distributed_c10d import TCPStore

from kernrl.cli import run
from kernrl.errors import InfrastructureError, RunError
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.run_directory import read_lines
from kernrl.stages import reinforce
from kernrl.training import session

KINDS = {"ddp": {}, "fsdp2": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}}


def _process(arguments, environment, errors, before):
    """One rank: this test's process, forked, with a launcher's environment."""
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(1)
    session.open_verifier = lambda config: FakeVerifier(judge)
    if before:
        before()
    os._exit(run(arguments))


def launch(arguments, errors, size=2, kind="ddp", before=None):
    """Start the ranks of one run; `before` is called in each of them first."""
    store = TCPStore("localhost", 0, is_master=True)  # as a launcher keeps one for its processes
    processes = []
    for rank in range(size):
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        places |= {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
        launched = {**{name: str(value) for name, value in places.items()}, **KINDS[kind]}
        environment = launched if size > 1 else {}
        processes.append(
            multiprocessing.get_context("fork").Process(target=_process, args=(arguments, environment, errors, before))
        )
        processes[-1].start()
        processes[-1].store = store
    return processes


def finish(processes, timeout_s=60):
    """Exit codes, in the order of ranks; a rank that hangs has None, and is killed."""
    for process in processes:
        process.join(timeout_s)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def together(arguments, tmp_path, **options):
    """Exit codes of all ranks, and what they wrote to stderr."""
    errors = tmp_path / "errors.txt"
    errors.unlink(missing_ok=True)
    return finish(launch(arguments, errors, **options)), errors.read_text()


WHOLE = ("--no-lora", "--no-gradient-checkpointing")


def rl(model, tasks, output, *more, steps=3):
    # batches of two rollouts, so that every rank has some; rows of one or two, so that ranks have different numbers of them
    sizes = ["--tasks-per-step", "3", "--samples", "3", "--max-tokens", "8", "--row-tokens", "160", "--sampling-batch", "2"]
    where = ["--model", str(model), "--tasks", str(tasks), "--output", str(output), "--steps", str(steps)]
    return ["reinforce", *where, *sizes, *WHOLE, "--learning-rate", "0.01", "--reward", "best-of-n", "--quiet", *more]


def tune(stage, model, tasks, output, *more):
    sizes = ["--samples", "4", "--max-tokens", "8", "--row-tokens", "160", "--rows-per-step", "2", "--sampling-batch", "2"]
    where = ["--model", str(model), "--tasks", str(tasks), "--output", str(output)]
    return [stage, *where, *sizes, *WHOLE, "--learning-rate", "0.01", "--reward", "best-of-n", "--quiet", *more]


TUNED = {
    "best-of-n": ("--rounds", "3", "--tasks-per-round", "2", "--threshold", "-9"),
    "reward-weighted": ("--weighting", "exp"),
}


def same(found, expected):
    assert found.keys() == expected.keys()
    for step, values in expected.items():
        assert found[step] == pytest.approx(values, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def alone(model, pairs, tmp_path_factory):
    """A run of `sft` in one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert together(sft(model, pairs, folder / "run"), folder, size=1)[0] == [0]
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sft_learns_the_same_in_two_processes(model, pairs, tmp_path, kind, alone):
    codes, errors = together(sft(model, pairs, tmp_path / "two"), tmp_path, kind=kind)
    assert codes == [0, 0], errors
    same(losses(tmp_path / "two"), losses(alone))
    one, two = weights(alone / "model"), weights(tmp_path / "two" / "model")
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[n].float(), two[n].float(), atol=2e-2, rtol=1e-2) for n in one)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--loss", "grpo", "--epochs", "2", "--updates-per-epoch", "2", "--beta", "0.1")])
def test_reinforce_samples_and_learns_the_same_in_two_processes(model, tasks, tmp_path, options):
    assert together(rl(model, tasks, tmp_path / "one", *options), tmp_path, size=1)[0] == [0]
    codes, errors = together(rl(model, tasks, tmp_path / "two", *options), tmp_path)
    assert codes == [0, 0], errors
    same(losses(tmp_path / "two"), losses(tmp_path / "one"))
    one, two = ({row["id"]: row["text"] for row in read_lines(tmp_path / n / "samples.jsonl")} for n in ("one", "two"))
    assert one == two
    assert len(one) == 27


class OneAfterAnother(FakeVerifier):
    """Takes a candidate only when the one before it has been timed, for which nobody else may use a GPU."""

    def __init__(self):
        super().__init__(judge)
        self._gpus = [threading.Lock(), threading.Lock()]

    @contextmanager
    def untimed(self, gpu=None):
        with self._gpus[gpu]:
            yield

    def time_on(self, gpu):
        assert self._gpus[gpu].acquire(timeout=20), f"GPU {gpu} is never free"
        self._gpus[gpu].release()

    def verify_many(self, pairs):
        for index, verdict in super().verify_many(pairs):
            self.time_on(0)
            self.time_on(1)
            yield index, verdict


def timing_one_after_another():
    session.open_verifier = lambda config: OneAfterAnother()


def timing_on_the_second_gpu_while_rank_0_decodes():
    verifier, generate = OneAfterAnother(), GenerateEngine.generate

    def timed_first(self, prompts, sampling):
        if os.environ["RANK"] == "0":
            verifier.time_on(1)
        yield from generate(self, prompts, sampling)

    session.open_verifier = lambda config: verifier
    GenerateEngine.generate = timed_first


@pytest.mark.slow
def test_candidates_are_timed_before_all_rollouts_are_taken(model, tasks, tmp_path):
    codes, errors = together(rl(model, tasks, tmp_path / "run", steps=1), tmp_path, before=timing_one_after_another)
    assert codes == [0, 0], errors
    assert len(read_lines(tmp_path / "run" / "samples.jsonl")) == 9


@pytest.mark.slow
def test_a_gpu_is_free_for_timing_when_its_own_rank_has_decoded(model, tasks, tmp_path):
    arguments = rl(model, tasks, tmp_path / "run", "--sampling-batch", "9", steps=1)  # one batch, which rank 0 decodes
    codes, errors = together(arguments, tmp_path, before=timing_on_the_second_gpu_while_rank_0_decodes)
    assert codes == [0, 0], errors


def ending():
    """Stop tokens that even a tiny model meets."""
    session.stop_ids = lambda policy: (ord(" "), *range(4, 30))


@pytest.mark.slow
@pytest.mark.parametrize("stage", TUNED)
def test_rounds_sample_keep_and_learn_the_same_in_two_processes(model, tasks, tmp_path, stage):
    for size, name in ((1, "one"), (2, "two")):
        arguments = tune(stage, model, tasks, tmp_path / name, *TUNED[stage])
        codes, errors = together(arguments, tmp_path, size=size, before=ending)
        assert codes == [0] * size, errors
    assert_same_run(tmp_path / "two", tmp_path / "one")


OF_A_SERVER = {
    **{stage: lambda *where, stage=stage: tune(stage, *where, *TUNED[stage]) for stage in TUNED},
    "reinforce": rl,
    # log-probs of the policy and of its reference are computed between the updates
    "grpo": lambda *where: rl(*where, "--loss", "grpo", "--epochs", "2", "--updates-per-epoch", "2", "--beta", "0.1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", OF_A_SERVER if EXHAUSTIVE else ("reward-weighted", "grpo"))
def test_shards_learn_from_a_server_what_one_process_does(model, tasks, tmp_path, stage):
    for size, name in ((1, "one"), (2, "two")):
        with StandIn(end_token=29) as server:
            arguments = [*OF_A_SERVER[stage](model, tasks, tmp_path / name), "--engine", "server", "--server-url", server.url]
            codes, errors = together(arguments, tmp_path, size=size, kind="fsdp2", before=ending)
            assert codes == [0] * size, errors
    assert_same_run(tmp_path / "two", tmp_path / "one")


def assert_same_run(found, expected):
    """The same samples, the same losses in every step, and the same model in the end."""
    same(losses(found), losses(expected))
    assert any(values for values in losses(expected).values())
    one, two = ({row["id"]: row["text"] for row in read_lines(run / "samples.jsonl")} for run in (expected, found))
    assert one == two
    one, two = weights(expected / "model"), weights(found / "model")
    assert all(torch.allclose(one[n].float(), two[n].float(), atol=2e-2, rtol=1e-2) for n in one)


def stopping_at_step_three(number=signal.SIGINT):
    """A signal to rank 1, in the middle of the run."""

    def before():
        if os.environ.get("RANK") == "1":
            seen = iter(range(100))
            original = torch.optim.AdamW.step

            def step(self, *args, **kwargs):
                if next(seen) == 2:
                    os.kill(os.getpid(), number)
                return original(self, *args, **kwargs)

            torch.optim.AdamW.step = step

    return before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_goes_on_in_another_number_of_processes(model, pairs, tmp_path, kind, alone):
    shutil.copytree(alone, tmp_path / "whole")
    codes, errors = together(sft(model, pairs, tmp_path / "run"), tmp_path, kind=kind, before=stopping_at_step_three())
    assert codes == [130, 130], errors
    assert (tmp_path / "run" / "step_3" / "COMPLETE").exists()
    assert together(sft(model, pairs, tmp_path / "run", "--resume"), tmp_path, size=1)[0] == [0]
    same(losses(tmp_path / "run"), losses(tmp_path / "whole"))
    # and back: what one process wrote at step 2, two go on from
    (tmp_path / "whole" / "model").rename(tmp_path / "model")
    codes, errors = together(sft(model, pairs, tmp_path / "whole", "--resume"), tmp_path, kind=kind)
    assert codes == [0, 0], errors
    same(losses(tmp_path / "whole"), losses(tmp_path / "run"))


@pytest.mark.slow
def test_reinforce_stopped_by_a_scheduler_goes_on_in_one_process_and_back(model, tasks, tmp_path):
    codes, errors = together(rl(model, tasks, tmp_path / "whole", steps=5), tmp_path)
    assert codes == [0, 0], errors
    before = stopping_at_step_three(signal.SIGTERM)
    codes, errors = together(rl(model, tasks, tmp_path / "run", steps=5), tmp_path, before=before)
    assert codes == [130, 130], errors
    resumed = [*rl(model, tasks, tmp_path / "run", steps=5), "--resume"]
    assert together(resumed, tmp_path, size=1, before=killed_after_one_step)[0] == [9]
    codes, errors = together(resumed, tmp_path)
    assert codes == [0, 0], errors
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def killed_after_one_step():
    seen = iter(range(100))
    original = reinforce.Learner.finish_step

    def finish_step(self, metrics, seconds):
        if next(seen) == 1:
            os._exit(9)
        return original(self, metrics, seconds)

    reinforce.Learner.finish_step = finish_step


@pytest.mark.slow
def test_best_of_n_goes_on_in_another_number_of_processes(model, tasks, tmp_path):
    for name in ("whole", "run"):
        codes, errors = together(tune("best-of-n", model, tasks, tmp_path / name, *TUNED["best-of-n"]), tmp_path, before=ending)
        assert codes == [0, 0], errors
    # as if it had been killed in round 3
    for left in ("step_3", "model"):
        shutil.rmtree(tmp_path / "run" / left)
    resumed = tune("best-of-n", model, tasks, tmp_path / "run", *TUNED["best-of-n"], "--resume")
    codes, errors = together(resumed, tmp_path, size=1, before=ending)
    assert codes == [0], errors
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def fail_on_rank_one():
    if os.environ["RANK"] == "1":

        def update(self, rows):
            raise RunError("the update failed here")

        reinforce.Learner.update = update


@pytest.mark.slow
def test_an_error_on_one_rank_ends_all_and_is_told_once(model, tasks, tmp_path):
    codes, errors = together(rl(model, tasks, tmp_path / "run"), tmp_path, before=fail_on_rank_one)
    assert codes == [1, 1]
    assert errors.count("the update failed here") == 1
    assert "Traceback" not in errors


def test_bad_input_is_told_once(model, pairs, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    codes, errors = together(sft(model, pairs, tmp_path / "full"), tmp_path)
    assert codes == [2, 2]
    assert errors.count("is not empty") == 1


@pytest.mark.slow
def test_rows_that_do_not_deal_out_evenly_change_nothing(model, pairs, tmp_path):
    for size, name in ((1, "one"), (2, "two")):
        codes, errors = together(sft(model, pairs, tmp_path / name, "--rows-per-step", "3"), tmp_path, size=size)
        assert codes == [0] * size, errors
    same(losses(tmp_path / "two"), losses(tmp_path / "one"))


class BrokenVerifier(FakeVerifier):
    """Breaks at the first candidate, while rank 1 has hours of sampling before it."""

    def verify_many(self, pairs):
        next(iter(pairs))
        raise InfrastructureError("the verifier broke")


def verification_breaks():
    session.open_verifier = lambda config: BrokenVerifier(judge)
    if os.environ["RANK"] == "1":
        real = GenerateEngine.generate

        def endless(self, prompts, sampling):
            found = list(real(self, prompts, sampling))
            while True:
                time.sleep(0.01)
                yield found[0]

        GenerateEngine.generate = endless


@pytest.mark.slow
def test_an_error_of_the_verifier_ends_the_ranks_that_sample_for_it(model, tasks, tmp_path):
    codes, errors = together(rl(model, tasks, tmp_path / "run"), tmp_path, before=verification_breaks)
    assert codes == [3, 3], errors
    assert errors.count("the verifier broke") == 1
    assert "Traceback" not in errors


@pytest.mark.slow
def test_shards_do_not_sample(model, tasks, tmp_path):
    codes, errors = together(rl(model, tasks, tmp_path / "run"), tmp_path, kind="fsdp2")
    assert codes == [2, 2]
    assert errors.count("give --engine server") == 1


@pytest.mark.slow
def test_a_killed_rank_ends_the_run(model, tasks, tmp_path):
    errors = tmp_path / "errors.txt"
    forever = ("--save-every", "1", "--give-up-after", "0")
    processes = launch(rl(model, tasks, tmp_path / "run", *forever, steps=500), errors)
    while not (tmp_path / "run" / "step_1").exists() and processes[0].is_alive():
        time.sleep(0.01)
    processes[1].kill()
    assert finish(processes) == [3, -signal.SIGKILL]
    assert "Traceback" not in errors.read_text()
