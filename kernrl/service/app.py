"""The HTTP side of `kernrl serve`. `docs/guides/serve.md` has the requests and answers."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kernrl.errors import KernrlError, UsageError
from kernrl.service.jobs import Closing, Full, Job, Jobs, job_id
from kernrl.tasks.rows import BadRow, task_from_row

MAX_BODY_BYTES = 8 << 20
"""Largest request; the largest task and candidate that anybody means are a hundredth of it."""

MAX_WAIT_S = 60.0
"""Longest a request waits for its verdict: proxies cut longer ones."""

RETRY_AFTER_S = 1


class Refused(Exception):
    """A request that cannot be served: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.headers = status, headers


def build_app(jobs: Jobs, *, token: str, about: dict[str, Any]) -> Starlette:
    """The application.

    Args:
        token: what clients must send as `Authorization: Bearer TOKEN`; `/health` alone answers without it.
        about: what `/v1/about` says of the verifier.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(jobs))  # pyright: ignore[reportArgumentType]

    async def submit(request: Request) -> Response:
        row, candidate = _asked(await _body(request))
        try:
            task = task_from_row(row, "task")
        except (BadRow, UsageError) as error:
            raise Refused(400, f"'task': the row {error}." if isinstance(error, BadRow) else str(error)) from None
        try:
            job = jobs.submit(job_id(row, candidate), task, candidate)
        except Full:
            raise Refused(429, "the queue is full; ask again later", {"Retry-After": str(RETRY_AFTER_S)}) from None
        except Closing:
            raise Refused(503, "the server is ending") from None
        return await _answer(job, _wait_s(request))

    async def look(request: Request) -> Response:
        job = jobs.get(request.path_params["id"])
        if job is None:
            raise Refused(404, "there is no such job here; send the candidate again")
        return await _answer(job, _wait_s(request))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "unfinished": jobs.unfinished})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4")

    async def say(request: Request) -> Response:
        return JSONResponse(about)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return JSONResponse({"error": str(error)}, error.status, error.headers)

    return Starlette(
        routes=[
            Route("/v1/verdicts", submit, methods=["POST"]),
            Route("/v1/verdicts/{id}", look),
            Route("/v1/about", say),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(_Bearer, token=token)],
        exception_handlers={Refused: refused},
    )


class _Bearer:
    """Lets through who has the token."""

    def __init__(self, app: ASGIApp, token: str):
        self._app, self._wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                answer = JSONResponse({"error": "this server wants its token"}, 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Metrics:
    """The counters of the jobs, for Prometheus."""

    def __init__(self, jobs: Jobs):
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        jobs = self._jobs
        verdicts = CounterMetricFamily("kernrl_verdicts", "Verdicts given, by status.", labels=["status"])
        for status, count in sorted(jobs.statuses.items()):
            verdicts.add_metric([status], count)
        yield verdicts
        yield CounterMetricFamily("kernrl_verdict_seconds", "Time from request to verdict, summed.", jobs.seconds)
        yield CounterMetricFamily("kernrl_requests_joined", "Requests whose job was there already.", jobs.joined)
        yield GaugeMetricFamily("kernrl_unfinished_jobs", "Jobs that wait or are being judged.", jobs.unfinished)


async def _body(request: Request) -> Any:
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > MAX_BODY_BYTES:
            raise Refused(413, f"a request may have {MAX_BODY_BYTES >> 20} MiB")
    try:
        return json.loads(received)
    except ValueError:
        raise Refused(400, "the request is no JSON") from None


def _asked(body: Any) -> tuple[dict[str, Any], str]:
    """Task row and candidate of a request."""
    if isinstance(body, dict) and body.keys() == {"task", "candidate"}:
        row, candidate = body["task"], body["candidate"]
        if isinstance(row, dict) and isinstance(candidate, str):
            return row, candidate
    raise Refused(400, "a request is an object with 'task', a row as in a file of tasks, and 'candidate', a text")


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    try:
        return min(max(float(text), 0.0), MAX_WAIT_S)
    except ValueError:
        raise Refused(400, "'wait' is a number of seconds") from None


async def _answer(job: Job, wait_s: float) -> Response:
    """The verdict if it comes within `wait_s`, otherwise that the job is unfinished."""
    waiting = asyncio.wrap_future(job.verdict)
    # unlike wait_for, this never cancels what others may wait for
    done, _ = await asyncio.wait([waiting], timeout=wait_s)
    if not done:
        return JSONResponse({"id": job.id, "status": "unfinished"}, 202)
    try:
        verdict = waiting.result()
    except UsageError as error:
        raise Refused(422, str(error)) from None
    except (KernrlError, CancelledError, asyncio.CancelledError) as error:
        raise Refused(503, str(error) or "the server is ending") from None
    return JSONResponse({"id": job.id, "status": "done", "verdict": verdict.to_json()})
