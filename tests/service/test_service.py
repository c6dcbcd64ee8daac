"""Verdicts over HTTP: what is asked, what is refused, and many clients while either side is killed."""

from __future__ import annotations

import gc
import http.client
import json
import multiprocessing
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from support import EXHAUSTIVE, TESTS
from support.logged import Logged
from support.tiny import verdict_of
from support.warm_commands import Running, start

from kernrl import cli, http_client
from kernrl.config import VerifierConfig, VerifyConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.service import client
from kernrl.service.client import TOKEN, RemoteVerifier, gpu_judged_on, open_verifier
from kernrl.service.jobs import Closing, Full, Jobs, job_id
from kernrl.stages.serve import THREADS_PER_CORE
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import task_to_row
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import Candidate, parse_reply
from kernrl.verifier.base.verdict import Stage, Status, Verdict

CODE = "import torch\n\nclass ModelNew(torch.nn.Module):\n    number = {}\n"
TASK: Task = load_tasks("heldout", limit=1).tasks[0]


def verdict(task: Task, status: Status = Status.CORRECT) -> Verdict:
    return Verdict(status, Stage.TIMING, "", task.id, "sha", task.precision)


class Slow:
    """A judge that waits for a word, and counts."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), 0
        self.error: Exception | None = None
        self.status = Status.CORRECT

    def verify(self, task: Task, candidate: str) -> Verdict:
        self.asked += 1
        self.go.wait(10)
        if self.error:
            raise self.error
        return verdict(task, self.status)


# --- the queue ---------------------------------------------------------------------------------------------------------


def test_equal_questions_are_one_job_while_it_runs_and_after() -> None:
    judge = Slow()
    jobs = Jobs(judge, limit=4, threads=2)
    first, again = jobs.submit("a", TASK, ""), jobs.submit("a", TASK, "")
    judge.go.set()
    assert first is again
    assert first.verdict.result().correct
    while jobs.unfinished:  # the callback runs just after the result is there
        time.sleep(0.001)
    assert jobs.submit("a", TASK, "") is first
    assert (judge.asked, jobs.joined, jobs.statuses) == (1, 2, {"correct": 1})


def test_a_full_queue_takes_no_more_until_one_is_done() -> None:
    judge = Slow()
    jobs = Jobs(judge, limit=2, threads=1)
    waiting = [jobs.submit(id, TASK, "") for id in "ab"]
    with pytest.raises(Full):
        jobs.submit("c", TASK, "")
    assert jobs.submit("b", TASK, "") is waiting[1], "what waits already may be asked for"
    judge.go.set()
    for job in waiting:
        job.verdict.result()
    while jobs.unfinished:
        time.sleep(0.001)
    assert jobs.submit("c", TASK, "").verdict.result().correct


@pytest.mark.parametrize("broken", [InfrastructureError("gone"), None])
def test_what_broke_is_judged_anew_when_asked_again(broken: Exception | None) -> None:
    judge = Slow()
    judge.go.set()
    judge.error, judge.status = broken, Status.INFRA_ERROR
    jobs = Jobs(judge, limit=2, threads=1)
    jobs.submit("a", TASK, "").verdict.exception()
    while jobs.unfinished:
        time.sleep(0.001)
    judge.error, judge.status = None, Status.CORRECT
    assert jobs.submit("a", TASK, "").verdict.result().correct
    assert judge.asked == 2


def test_a_closed_queue_takes_nothing_and_cancels_what_waits() -> None:
    judge = Slow()
    jobs = Jobs(judge, limit=4, threads=1)
    jobs.submit("a", TASK, "")
    waiting = jobs.submit("b", TASK, "")
    jobs.close()
    judge.go.set()
    assert waiting.verdict.cancelled()
    with pytest.raises(Closing):
        jobs.submit("c", TASK, "")


# --- the server --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def start_server(port: int, folder: Path) -> Running:
    command = [str(TESTS / "support" / "serve_stand_in.py"), str(port), str(folder)]
    with open(folder / "log.txt", "ab") as log:
        process = start(command, log.fileno(), **{TOKEN: "secret"})
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    raise AssertionError("the server did not start")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    process = start_server(port, tmp_path_factory.mktemp("serve"))
    yield f"http://127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    process.wait()


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    monkeypatch.setattr(http_client, "FIRST_WAIT_S", 0.01)


def ask(address: str, method: str, path: str, body: bytes = b"", secret: str = "secret") -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
    connection.request(method, path, body, {"Authorization": f"Bearer {secret}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if text.startswith("{") else text, dict(answer.getheaders())


def request(candidate: str, **task: Any) -> bytes:
    return json.dumps({"task": task_to_row(TASK) | task, "candidate": candidate}).encode()


@pytest.mark.slow
class TestServer:
    def test_verdicts_come_as_from_a_verifier_here(self, address: str, token: None) -> None:
        with open_verifier(VerifierConfig(executor=address, precision="fp32")) as verifier:
            assert verifier.gpu() == gpu_judged_on(VerifierConfig(executor=address)) == "H200"
            assert isinstance(verifier, RemoteVerifier)
            one = verifier.verify(TASK, CODE.format("one"))
            many = dict(verifier.verify_many((TASK, CODE.format(i % 3)) for i in range(9)))
        assert (one.status, one.precision, one.task_id) == (Status.CORRECT, "fp32", TASK.id)
        assert sorted(many) == list(range(9))
        assert len({v.candidate_sha for v in many.values()}) == 3

    def test_a_verdict_can_be_asked_for_later(self, address: str) -> None:
        status, answer, _ = ask(address, "POST", "/v1/verdicts", request(CODE.format("later")))
        assert status in (200, 202)
        status, answer, _ = ask(address, "GET", f"/v1/verdicts/{answer['id']}?wait=10")
        assert (status, answer["status"], answer["verdict"]["correct"]) == (200, "done", True)

    def test_health_needs_no_token_and_all_else_does(self, address: str) -> None:
        assert ask(address, "GET", "/health", secret="")[:2] == (200, {"status": "ok", "unfinished": 0})
        for method, path in (("GET", "/metrics"), ("GET", "/v1/about"), ("POST", "/v1/verdicts"), ("GET", "/v1/verdicts/x")):
            status, answer, _ = ask(address, method, path, secret="wrong")
            assert (status, answer["error"]) == (401, "this server wants its token")

    def test_metrics_count_verdicts(self, address: str) -> None:
        ask(address, "POST", "/v1/verdicts?wait=10", request(CODE.format("counted")))
        lines = dict(line.rsplit(" ", 1) for line in ask(address, "GET", "/metrics")[1].splitlines() if line[0] != "#")
        assert float(lines['kernrl_verdicts_total{status="correct"}']) >= 1
        assert float(lines["kernrl_unfinished_jobs"]) == 0
        assert float(lines["kernrl_verdict_seconds_total"]) > 0

    @pytest.mark.parametrize(
        ("body", "status", "said"),
        [
            (b"{", 400, "the request is no JSON"),
            (b"[]", 400, "a request is an object with 'task'"),
            (json.dumps({"task": {}, "candidate": "x", "precision": "tf32"}).encode(), 400, "a request is an object with"),
            (json.dumps({"task": "heldout#1", "candidate": "x"}).encode(), 400, "a request is an object with 'task', a row"),
            (request("x", pytorch_code="import torch"), 400, "'task': the row has code that defines no Model"),
            (b" " * ((8 << 20) + 1), 413, "a request may have 8 MiB"),
        ],
    )
    def test_bad_requests_get_a_sentence(self, address: str, body: bytes, status: int, said: str) -> None:
        found, answer, _ = ask(address, "POST", "/v1/verdicts", body)
        assert found == status
        assert answer["error"].startswith(said)

    def test_unknown_jobs_are_404(self, address: str) -> None:
        assert ask(address, "GET", "/v1/verdicts/nothing")[0] == 404

    def test_more_than_the_queue_holds_is_told_to_come_back(self, address: str) -> None:
        def send(number: int) -> tuple[int, dict[str, str]]:
            status, _, headers = ask(address, "POST", "/v1/verdicts", request(CODE.format(f"'hold the queue {number}'")))
            return status, headers

        with ThreadPoolExecutor(48) as threads:
            answers = list(threads.map(send, range(96)))
        busy = [headers for status, headers in answers if status == 429]
        assert {status for status, _ in answers} <= {200, 202, 429}
        assert busy, "96 candidates of 0.2 s were taken into a queue of 32"
        assert all(headers["retry-after"] == "1" for headers in busy)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"workers": 3}, "workers must be set where 'kernrl serve' is started"),
            ({"candidate_cpu_s": 9.0, "compile_timeout_s": 9.0}, "candidate_cpu_s, compile_timeout_s must be set where"),
            ({"baseline": ("eager", "compile")}, "the server's baselines are eager: ask for --baseline eager"),
            ({"any_shape": True}, "the server was started without --any-shape"),
            ({"device": "cuda"}, "the server has no GPU"),
        ],
    )
    def test_settings_that_the_server_does_not_serve_are_refused(
        self, address: str, token: None, settings: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(UsageError, match=said):
            open_verifier(VerifierConfig(executor=address, **settings))

    def test_a_wrong_token_is_one_sentence(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(TOKEN, "other")
        with pytest.raises(UsageError, match=rf"--verifier.executor {address}: /v1/about: status 401.*{TOKEN}"):
            open_verifier(VerifierConfig(executor=address))


def test_nobody_there_is_one_sentence(token: None) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    for settings, flag in (
        (VerifierConfig(executor=address), "--verifier.executor"),
        (VerifyConfig(executor=address), "--executor"),
    ):
        with pytest.raises(InfrastructureError, match=f"^{flag} {address}: /v1/about: nobody answers"):
            open_verifier(settings)


def test_an_address_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert cli.run(["serve", "--port", str(port)]) == 2
    assert f"--host 127.0.0.1 --port {port}: Address already in use" in capsys.readouterr().err


def test_an_id_says_what_is_asked() -> None:
    row = task_to_row(TASK)
    assert job_id(row, "x") == job_id(dict(reversed(row.items())), "x")
    assert len({job_id(row, "x"), job_id(row, "y"), job_id(row | {"precision": "bf16"}, "x")}) == 3


def test_a_server_that_is_away_is_told_of_once(monkeypatch: pytest.MonkeyPatch, logged: Logged) -> None:
    about = {"baseline": ["eager"], "any_shape": False, "gpus": [], "precision": None, "versions": {}}
    answers = iter([*["nobody answers"] * 3, verdict_of("x", Status.CORRECT).to_json()] * 2)

    class Away:
        url = "http://there"

        def __init__(self, *_: object, **__: object) -> None: ...

        def get(self, path: str) -> object:
            return about

        def post(self, path: str, body: object) -> object:
            if isinstance(answer := next(answers), str):
                raise InfrastructureError(answer)
            return {"verdict": answer}

        def close(self) -> None: ...

    monkeypatch.setattr(client, "Server", Away)
    verifier = RemoteVerifier(VerifierConfig(executor="http://there"))
    assert verifier.gpu() == ""  # an older server does not say
    assert [verifier.verify(TASK, "x").status for _ in range(2)] == [Status.CORRECT] * 2
    one = ["nobody answers. Asking again for 10 minutes.", "http://there answers again."]
    assert [record.getMessage() for record in logged.records] == one * 2


@pytest.mark.slow
def test_64_requests_of_one_client_and_a_kill_of_the_server_lose_nothing_and_judge_nothing_twice(
    tmp_path: Path, token: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was judged and kept before the kill is not judged again, and every client gets every verdict."""
    monkeypatch.setattr(client, "IN_FLIGHT", 64)
    port, count = free_port(), 600 if EXHAUSTIVE else 300
    server = start_server(port, tmp_path)
    with RemoteVerifier(VerifierConfig(executor=f"http://127.0.0.1:{port}"), patience_s=60) as verifier:
        verdicts = verifier.verify_many((TASK, CODE.format(i % (count // 2))) for i in range(count))
        seen = dict(next(verdicts) for _ in range(100))
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        kept = kept_shas(tmp_path)
        judged_before = (tmp_path / "judged.txt").read_text().split()
        (tmp_path / "judged.txt").unlink()
        server = start_server(port, tmp_path)
        seen |= dict(verdicts)
    judged_after = (tmp_path / "judged.txt").read_text().split()
    server.send_signal(signal.SIGINT)
    assert server.wait() == 130
    assert "Traceback" not in (tmp_path / "log.txt").read_text()
    assert sorted(seen) == list(range(count))
    assert all(v.correct for v in seen.values())
    assert len(kept) >= 30
    assert not kept & set(judged_after), "a verdict that was kept was made again"
    assert len(judged_before) == len(set(judged_before))
    assert len(judged_after) == len(set(judged_after))


CLIENTS, OWN = 64, 4
DOOMED = range(0, CLIENTS, 4)
"""Clients that ask for more and more until they are killed."""


def asked_by(number: int) -> range:
    """A client's candidates: half of them are its neighbour's, too, and those who come to no end ask for everybody's."""
    return range(number * OWN, 1 << 30 if number in DOOMED else (number + 2) * OWN)


def be_client(address: str, number: int, folder: Path, all_there: Barrier) -> None:
    """What each of the processes does: note every verdict as it comes."""
    gc.disable()  # it would write to all memory that is shared with the process that was forked
    client.IN_FLIGHT = 2
    http_client.FIRST_WAIT_S = 0.1
    with (
        RemoteVerifier(VerifierConfig(executor=address), patience_s=60) as verifier,
        open(folder / f"client{number}.txt", "w", buffering=1) as file,
    ):
        all_there.wait()  # a client does not wait for a server that has never answered it
        candidates = asked_by(number)
        for position, verdict in verifier.verify_many((TASK, CODE.format(n)) for n in candidates):
            file.write(f"{candidates[position]} {verdict.status} {verdict.candidate_sha}\n")


def wait_for_judged(folder: Path, count: int, processes: Sequence[ForkProcess]) -> None:
    """Until the server has noted so many candidates."""
    while not (folder / "judged.txt").exists() or len((folder / "judged.txt").read_text().split()) < count:
        assert all(process.exitcode in (None, 0) for process in processes), (folder / "log.txt").read_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_64_client_processes_of_which_some_are_killed_and_the_server_too_get_each_verdict_once(
    tmp_path: Path, token: None
) -> None:
    """Nothing is judged twice but what the server was at when it was killed: at most one candidate a thread, whose verdict was
    not kept yet."""
    port = free_port()
    server = start_server(port, tmp_path)
    fork = multiprocessing.get_context("fork")
    address, all_there = f"http://127.0.0.1:{port}", fork.Barrier(CLIENTS + 1)
    clients = [
        fork.Process(target=be_client, args=(address, n, tmp_path, all_there), daemon=True)  # it ends with this process
        for n in range(CLIENTS)
    ]
    for process in clients:
        process.start()
    all_there.wait(120)
    doomed, living = [clients[n] for n in DOOMED], [one for n, one in enumerate(clients) if n not in DOOMED]

    def kill(some: Sequence[ForkProcess]) -> None:
        for process in some:
            assert process.is_alive(), "it has work for ever"
            process.kill()

    wait_for_judged(tmp_path, 40, living)
    kill(doomed[::2])
    wait_for_judged(tmp_path, 100, living)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    kept = kept_shas(tmp_path)
    before = (tmp_path / "judged.txt").read_text().split()
    (tmp_path / "judged.txt").unlink()
    server = start_server(port, tmp_path)
    wait_for_judged(tmp_path, 40, living)
    kill(doomed[1::2])
    for process in living:
        process.join(120)
    codes = [process.exitcode for process in living]
    for process in clients:
        process.kill()
        process.join()
    while (health := ask(address, "GET", "/health")[1])["unfinished"]:
        time.sleep(0.02)  # what the killed ones have asked for is judged and forgotten
    server.send_signal(signal.SIGINT)
    assert server.wait() == 130
    assert health == {"status": "ok", "unfinished": 0}
    assert codes == [0] * len(living), (tmp_path / "log.txt").read_text()
    assert "Traceback" not in (tmp_path / "log.txt").read_text()

    shas = {n: sha_of(CODE.format(n)) for n in range((CLIENTS + 1) * OWN)}
    for number in set(range(CLIENTS)) - set(DOOMED):
        lines = (tmp_path / f"client{number}.txt").read_text().splitlines()
        assert sorted(lines) == sorted(f"{n} {Status.CORRECT} {shas[n]}" for n in asked_by(number))
    after = (tmp_path / "judged.txt").read_text().split()
    assert len(before) == len(set(before))
    assert len(after) == len(set(after))
    assert len(kept) >= 90
    again = set(before) & set(after)
    assert not kept & again, "a verdict that was kept was made again"
    assert len(again) <= 2 * THREADS_PER_CORE


def sha_of(reply: str) -> str:
    candidate = parse_reply(reply)
    assert isinstance(candidate, Candidate)
    return candidate.sha


def kept_shas(folder: Path) -> set[str]:
    """The candidates whose verdicts the server's cache holds."""
    with sqlite3.connect(folder / "cache" / "verdicts.sqlite") as database:
        return {json.loads(text)["candidate_sha"] for (text,) in database.execute("SELECT verdict FROM verdicts")}
