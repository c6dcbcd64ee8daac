"""From tasks to judged attempts: sampling and verification side by side, in one turn or several."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from kernrl.policy.examples import prompt_text
from kernrl.policy.pairs import Message, PromptStyle, task_messages
from kernrl.rollouts.engines.engine import Rollout, RolloutEngine, Sampling
from kernrl.rollouts.reward import UNKNOWN, Reward
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Stage, Status, Verdict

RewardOf = Callable[[Verdict], Reward | None]
"""What a verdict is worth; None where nothing is known."""


class Verifier(Protocol):
    """What the loop needs of a verifier."""

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        """Verdicts in completion order, each with the index of its pair. Pairs are taken as they come."""
        ...

    def untimed(self) -> AbstractContextManager[None]:
        """While inside, the caller keeps the GPUs busy, and nothing is timed on them."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout, judged."""

    task: Task
    group: int
    """Index of the task in the call: two groups may share a task."""
    member: int
    """0 to n - 1 within the group."""
    turn: int
    """From 1."""
    messages: list[Message]
    """The conversation that the rollout answers."""
    prompt_ids: list[int]
    rollout: Rollout
    text: str
    key: str
    """Of its source: see `candidate_key`."""
    verdict: Verdict
    reward: Reward | None
    repeated: bool
    """Another attempt of the same turn, of this group or another, had the same source before."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key that does not depend on what finished first."""
        return (self.group, self.turn, self.member)


@dataclass
class Collected:
    """What came of one call, in a fixed order."""

    attempts: list[Attempt] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time: `generate` until the last rollout ended (verification goes on beside it), `verify` from then on. And
    `trace`, `correctness` and `timing`: summed over the candidates, which overlap."""

    def extend(self, other: Collected) -> None:
        """Take in another call's attempts, whose group numbers follow this one's."""
        self.attempts += other.attempts
        for phase, spent in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def groups(self) -> list[list[Attempt]]:
        """Attempts by group and turn: those that are compared with each other."""
        found: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            found[attempt.group, attempt.turn].append(attempt)
        return list(found.values())

    def trajectories(self) -> list[list[Attempt]]:
        """Attempts by group and member, turn after turn."""
        found: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            found[attempt.group, attempt.member].append(attempt)
        return list(found.values())


@dataclass(frozen=True, slots=True)
class _Question:
    """One prompt of a turn."""

    task: Task
    group: int
    member: int | None
    """None in the first turn, where one prompt is answered n times."""
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class _Reply:
    """A rollout that waits for its verdict."""

    question: _Question
    rollout: Rollout
    text: str
    key: tuple[str, str]
    """(task id, candidate key)"""
    repeated: bool


@dataclass
class Collector:
    """Asks tasks, and has the answers judged.

    A candidate's verification starts when its rollout ends, while others are still being sampled. Equal sources for one
    task are verified once, within a call, across calls, and across a resumed run when `known` is filled from it.
    """

    engine: RolloutEngine
    tokenizer: PreTrainedTokenizerBase
    verifier: Verifier
    reward_of: RewardOf
    sampling: Sampling
    """Its seed is replaced in every call."""
    style: PromptStyle = "chat"
    precision: str | None = None
    """Precision policy named in the prompt, in place of the task's own."""
    turns: int = 1
    on_attempt: Callable[[Attempt], None] = lambda attempt: None
    """Told of every attempt as soon as it is judged, in no fixed order."""
    known: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    """(task id, candidate key) → its verdict."""

    def collect(self, tasks: Sequence[Task], seed: Sequence[int], first_group: int = 0) -> Collected:
        """Attempts at each task: `sampling.n` trajectories of up to `turns` turns.

        A trajectory ends early when nothing can be said about it, or when its reply was cut.

        Args:
            seed: words that make up the seed, such as (run seed, step).
            first_group: number of the first task's group.
        """
        result = Collected(seconds=defaultdict(float))
        questions = [
            _Question(task, group, None, task_messages(task, self.style, self.precision))
            for group, task in enumerate(tasks, first_group)
        ]
        for turn in range(1, self.turns + 1):
            attempts = sorted(self._turn(questions, turn, seed, result.seconds), key=lambda a: a.order)
            result.attempts += attempts
            questions = [
                _Question(a.task, a.group, a.member, [*a.messages, *_follow_up(a)])
                for a in attempts
                if a.rollout.finish == "stop" and a.verdict.status not in UNKNOWN
            ]
            if not questions:
                break
        result.attempts.sort(key=lambda a: a.order)
        return result

    def _turn(self, questions: list[_Question], turn: int, seed: Sequence[int], seconds: dict[str, float]) -> Iterator[Attempt]:
        prompts: list[list[int]] = [
            self.tokenizer(prompt_text(q.messages, self.tokenizer), add_special_tokens=False)["input_ids"]  # pyright: ignore
            for q in questions
        ]
        n = self.sampling.n if turn == 1 else 1
        word = int(np.random.SeedSequence([*seed, turn]).generate_state(1)[0])
        rollouts = self.engine.generate(prompts, replace(self.sampling, n=n, seed=word))
        replies: list[_Reply] = []
        submitted: list[_Reply] = []
        started = time.perf_counter()

        def new_pairs() -> Iterator[tuple[Task, str]]:
            """Each source that has no verdict yet, the moment it is sampled. The verifier may run this in a thread."""
            seen: set[tuple[str, str]] = set()
            for rollout in rollouts:
                question = questions[rollout.prompt]
                text = self._text(rollout)
                key = (question.task.id, candidate_key(text))
                reply = _Reply(question, rollout, text, key, repeated=key in seen)
                seen.add(key)
                replies.append(reply)
                if rollout.finish != "error" and not reply.repeated and key not in self.known:
                    submitted.append(reply)
                    yield question.task, text

        def judged(reply: _Reply, verdict: Verdict) -> Attempt:
            q = reply.question
            attempt = Attempt(
                task=q.task,
                group=q.group,
                member=reply.rollout.sample if q.member is None else q.member,
                turn=turn,
                messages=q.messages,
                prompt_ids=prompts[reply.rollout.prompt],
                rollout=reply.rollout,
                text=reply.text,
                key=reply.key[1],
                verdict=verdict,
                reward=self.reward_of(verdict),
                repeated=reply.repeated,
            )
            self.on_attempt(attempt)
            return attempt

        fresh: dict[tuple[str, str], Verdict] = {}
        with closing(rollouts):  # whatever goes wrong, nothing is sampled for nobody
            for index, verdict in self.verifier.verify_many(new_pairs()):
                fresh[submitted[index].key] = verdict
                for phase, spent in verdict.seconds.items():
                    seconds[phase] += spent
                yield judged(submitted[index], verdict)
        done = set(map(id, submitted))
        for reply in replies:
            if reply.rollout.finish == "error":
                yield judged(reply, _no_room(reply.question.task))
            elif id(reply) not in done:
                yield judged(reply, fresh.get(reply.key) or self.known[reply.key])
        self.known.update((key, verdict) for key, verdict in fresh.items() if verdict.status not in UNKNOWN)
        sampling_s = max((reply.rollout.ended_s for reply in replies), default=0.0)
        seconds["generate"] += sampling_s
        seconds["verify"] += max(0.0, time.perf_counter() - started - sampling_s)

    def _text(self, rollout: Rollout) -> str:
        ids = rollout.token_ids[:-1] if rollout.finish == "stop" else rollout.token_ids
        text = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def candidate_key(text: str) -> str:
    """The sha256 of the candidate's source in a reply, or of the whole reply where there is none."""
    parsed = parse_reply(text)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest() if isinstance(parsed, Rejection) else parsed.sha


def feedback(verdict: Verdict) -> str:
    """What a model is told about its last candidate."""
    if not verdict.correct:
        return f"This was not accepted ({verdict.status}): {verdict.reason}\nWrite the whole file again, corrected."
    speedup = verdict.speedup()
    if speedup is None:
        return "This is correct. Make it faster, and write the whole file again."
    times = f"{speedup.value:.2f} times the speed of PyTorch" if speedup.significant else "as fast as PyTorch"
    return f"This is correct, and {times}. Make it faster, and write the whole file again."


def _follow_up(attempt: Attempt) -> list[Message]:
    return [{"role": "assistant", "content": attempt.text}, {"role": "user", "content": feedback(attempt.verdict)}]


def _no_room(task: Task) -> Verdict:
    reason = "the prompt leaves no room for a reply in the model's context"
    return Verdict(Status.NO_CODE, Stage.PARSE, reason, task.id, "", task.precision)
