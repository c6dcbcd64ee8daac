"""`kernrl serve`: verdicts over HTTP, for trainers elsewhere."""

from __future__ import annotations

import os
import secrets
import socket

from kernrl.config.serve import ServeConfig
from kernrl.console import Result, counted, log
from kernrl.errors import UsageError
from kernrl.service.client import TOKEN
from kernrl.service.jobs import Jobs
from kernrl.verifier.verifier import HardenedVerifier

THREADS_PER_CORE = 4
"""Candidates handed to the verifier at once, for each core: it holds as many in progress."""

LAST_ANSWERS_S = 3
"""How long answers under way may take at the end."""


def run(config: ServeConfig) -> Result:
    """Serve until interrupted.

    Raises:
        UsageError: the address cannot be used, or the server's packages are missing.
        InfrastructureError: the verifier cannot work here at all.
    """
    try:
        import uvicorn

        from kernrl.service.app import build_app
    except ModuleNotFoundError as error:
        raise UsageError(f"kernrl serve needs {error.name}: pip install 'kernrl[serve]'.") from None
    listening = _listen(config)
    with HardenedVerifier(config) as verifier:
        verifier.evaluator.start()
        token = os.environ.get(TOKEN) or _new_token()
        jobs = Jobs(verifier, limit=config.queue, threads=THREADS_PER_CORE * verifier.evaluator.workers)
        about = {
            "baseline": list(config.baseline),
            "precision": config.precision,
            "any_shape": config.any_shape,
            "gpu": verifier.gpu(),
            "gpus": [gpu.gpu_info["gpu"] for gpu in verifier.evaluator.gpus],
            "versions": verifier.evaluator.versions,
        }
        host, port = listening.getsockname()[:2]

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                """Say where it is when it answers: a Ctrl-C before that would meet a half-made event loop."""
                await super().startup(sockets)
                log.print(f"Serving verdicts on http://{host}:{port}", markup=False, highlight=False, soft_wrap=True)

        settings = uvicorn.Config(
            build_app(jobs, token=token, about=about),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=LAST_ANSWERS_S,
            lifespan="off",  # there is nothing to start, and its end would log a traceback on Ctrl-C
        )
        try:
            Server(settings).run(sockets=[listening])
        finally:
            jobs.close()
    return Result({"statuses": dict(jobs.statuses)}, f"{counted(sum(jobs.statuses.values()), 'verdict')} given")


def _listen(config: ServeConfig) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        return socket.create_server((config.host, config.port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--host {config.host} --port {config.port}: {reason}; name another address.") from None


def _new_token() -> str:
    """A token for this once, shown so that clients can be given it."""
    token = secrets.token_urlsafe(24)
    log.print(f"Clients need this token: export {TOKEN}={token}", markup=False, highlight=False, soft_wrap=True)
    return token
