"""The groups of settings, as `json_schema_extra` takes them: `json_schema_extra=LOSS | RARE`."""

from __future__ import annotations

from pydantic.config import JsonDict

from kernrl.settings import GROUP

MODEL: JsonDict = {GROUP: "Model"}
TASKS: JsonDict = {GROUP: "Tasks"}
SAMPLING: JsonDict = {GROUP: "Sampling"}
REWARD: JsonDict = {GROUP: "Reward"}
LOSS: JsonDict = {GROUP: "Loss"}
OPTIMISER: JsonDict = {GROUP: "Optimiser"}
RUN: JsonDict = {GROUP: "Run"}
VERIFIER: JsonDict = {GROUP: "Verifier"}
