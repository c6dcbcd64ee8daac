"""Settings of `kernrl serve`."""

from __future__ import annotations

from pydantic import Field, field_validator

from kernrl.config.verifier import VerifierConfig


class ServeConfig(VerifierConfig):
    """`kernrl serve`."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. Whoever can reach it and has the token can run code as you: tasks are code.",
    )
    port: int = Field(default=8100, ge=0, le=65535, description="Port to listen on; 0 for a free one.")
    queue: int = Field(
        default=1024, ge=1, description="Most candidates that wait or are being judged; more are told to try again later (429)."
    )

    @field_validator("executor")
    @classmethod
    def _judges_itself(cls, value: str) -> str:
        if value.startswith("http"):
            raise ValueError("cannot be another server: give 'local' or the address of a Ray cluster")
        return value
