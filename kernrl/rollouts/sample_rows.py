"""A judged candidate as a line of `samples.jsonl`. Apart from what samples, so that this loads no model library."""

from __future__ import annotations

import hashlib
from typing import Any

from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Verdict


def candidate_key(text: str) -> str:
    """The sha256 of the candidate's source in a reply, or of the whole reply where there is none."""
    parsed = parse_reply(text)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest() if isinstance(parsed, Rejection) else parsed.sha


def row_of(task: Task, member: int, text: str, verdict: Verdict, **rest: Any) -> dict[str, Any]:
    """One line of `samples.jsonl`, with the fields that training stages write; there is no reward."""
    return {
        "id": f"{task.id}#{member}",
        "step": 0,
        "task": task.id,
        "family": task.family,
        "composition": list(task.composition),
        "level": task.level,
        "group": 0,
        "member": member,
        "turn": 1,
        "finish": "stop",
        "tokens": 0,
        "text": text,
        "key": candidate_key(text),
        "reward": None,
        "reward_parts": None,
        "verdict": verdict.to_json(),
    } | rest
