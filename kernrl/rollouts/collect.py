"""From tasks to judged attempts: candidates are verified while others are still being sampled, in one turn or several."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from kernrl.policy.examples import prompt_text
from kernrl.policy.pairs import Message, PromptStyle, task_messages
from kernrl.rollouts.advice import feedback
from kernrl.rollouts.engines.engine import Rollout, RolloutEngine, Sampling
from kernrl.rollouts.reward import UNKNOWN, Reward
from kernrl.rollouts.sample_rows import candidate_key
from kernrl.tasks.prompt import GRAPH_STYLES
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Stage, Status, Verdict

RewardOf = Callable[[Verdict], Reward | None]
"""What a verdict is worth; None where the candidate could not be judged."""


class Verifier(Protocol):
    """The part of a verifier that training uses."""

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        """Verdicts in completion order, each with the index of its pair. Pairs are taken as the iterator gives them, in this
        thread or another; when the last verdict is out, all of them were taken."""
        ...

    def gpu(self) -> str:
        """The GPU that candidates are judged on, or are modelled for, as a chat prompt names it; '' where nobody knows."""
        ...

    def unfit(self, task: Task) -> str:
        """Why there is no room to judge any candidate of a task, in a sentence; '' where there is, or where nobody knows."""
        ...

    def doing(self) -> str:
        """What its GPUs are at, for a line of progress; '' where nothing is under way or nobody knows."""
        ...

    def untimed(self, gpu: int | None = None) -> AbstractContextManager[None]:
        """Context in which the caller uses a GPU, by its index, or all of them: the verifier times nothing there meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout, judged."""

    task: Task
    group: int
    """Number of the group: the rollouts of one question. Two groups may share a task."""
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
    """Another attempt of the same turn, of any group, had the same source before."""
    reply: str = ""
    """What the model wrote, where `text` is the candidate's file that was made of it."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key that does not depend on what finished first."""
        return (self.group, self.turn, self.member)


@dataclass
class Collected:
    """The attempts of one call, in a fixed order."""

    attempts: list[Attempt] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """`ask`: wall time of making the prompts; `generate`: from then until the last rollout ended; `verify`: from then until the
    last verdict. `trace`, `correctness` and `timing` are sums over candidates, which are verified in parallel."""

    def extend(self, other: Collected) -> None:
        """Add another call's attempts and seconds."""
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


OnAttempt = Callable[[Attempt], None]


class Watch(Protocol):
    """Told how far sampling and verification are, from the threads that do it."""

    def expect(self, replies: int) -> None:
        """So many replies will be sampled."""
        ...

    def sampled(self, tokens: int) -> None:
        """A reply of so many tokens has ended."""
        ...

    def judged(self) -> None:
        """A verdict is in."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a turn."""

    task: Task
    group: int
    member: int | None
    """None in the first turn, where one prompt is answered n times."""
    messages: list[Message]
    prompt_ids: list[int]


@dataclass(frozen=True, slots=True)
class _Reply:
    """A rollout that waits for its verdict."""

    question: Question
    rollout: Rollout
    text: str
    key: tuple[str, str]
    """(task id, candidate key)"""
    repeated: bool
    reply: str = ""
    malformed: str = ""
    """Why no candidate could be made of the reply."""


def ignore(attempt: Attempt) -> None:
    """Do nothing with an attempt."""


def nothing_to_prepare(tasks: Sequence[Task]) -> None:
    """Do nothing before tasks are asked."""


@dataclass
class Collector:
    """Samples answers to tasks and has them verified.

    A candidate's verification starts when its rollout ends, while others are still being sampled. Equal sources for one
    task are verified once: within a call, across calls, and across a resumed run when `known` is filled from it.
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
    facts: bool = False
    """Facts of each task's Graph in chat prompts."""
    template: str = ""
    """Text of a prompt template of the user's own, for `chat`."""
    name_gpu: bool = True
    """The verifier's GPU in chat prompts."""
    turns: int = 1
    known: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    """(task id, candidate key) → its verdict."""
    watch: Watch | None = None
    prepare: Callable[[Sequence[Task]], None] = nothing_to_prepare
    """Called with the tasks that are asked next, as one that prepares them side by side."""

    def collect(
        self, tasks: Sequence[Task], seed: Sequence[int], first_group: int = 0, on_attempt: OnAttempt = ignore
    ) -> Collected:
        """Attempts at each task: `sampling.n` trajectories of up to `turns` turns.

        A trajectory ends early when its candidate could not be judged, or when its reply was cut.

        Args:
            seed: words that make up the seed, such as (run seed, step).
            first_group: number of the first task's group.
            on_attempt: called with every attempt as soon as it is judged, in no fixed order.
        """
        collected = Collected(seconds={"ask": 0.0})
        started = time.perf_counter()
        questions = self.questions(tasks, first_group)
        for turn in range(1, self.turns + 1):
            collected.seconds["ask"] += time.perf_counter() - started
            judged = self.judge(questions, self.sample(questions, seed, turn), turn, on_attempt)
            collected.extend(judged)
            started = time.perf_counter()
            questions = [
                self._question(a.task, a.group, a.member, [*a.messages, *_follow_up(a)])
                for a in judged.attempts
                if a.rollout.finish == "stop" and a.verdict.status not in UNKNOWN
            ]
            if not questions:
                break
        collected.attempts.sort(key=lambda a: a.order)
        return collected

    def questions(self, tasks: Sequence[Task], first_group: int = 0) -> list[Question]:
        """The prompts of a first turn, one a task."""
        self.prepare(tasks)
        return [self._question(task, group, None, self._asked(task)) for group, task in enumerate(tasks, first_group)]

    def sample(self, questions: Sequence[Question], seed: Sequence[int], turn: int = 1) -> Generator[Rollout, None, None]:
        """Rollouts of each question, as they end: n in the first turn, one in each later turn."""
        n = self.sampling.n if turn == 1 else 1
        if self.watch:
            self.watch.expect(n * len(questions))
        word = int(np.random.SeedSequence([*seed, turn]).generate_state(1)[0])
        return self.engine.generate([q.prompt_ids for q in questions], replace(self.sampling, n=n, seed=word))

    def judge(
        self,
        questions: Sequence[Question],
        rollouts: Generator[Rollout, None, None],
        turn: int = 1,
        on_attempt: OnAttempt = ignore,
    ) -> Collected:
        """Have rollouts verified as they arrive; returns one attempt a rollout, in a fixed order.

        Args:
            rollouts: answers to `questions`; closed at the end, so that after an error nothing more is sampled.
        """
        started = time.perf_counter()
        collected = Collected(seconds=defaultdict(float))
        verdicts: dict[tuple[str, str], Verdict] = {}
        not_submitted: list[_Reply] = []

        def new_sources() -> Iterator[_Reply]:
            seen: set[tuple[str, str]] = set()
            for rollout in rollouts:
                if self.watch:
                    self.watch.sampled(len(rollout.token_ids))
                reply = self._reply(questions[rollout.prompt], rollout, seen)
                seen.add(reply.key)
                if rollout.finish == "error" or reply.malformed or reply.repeated or reply.key in self.known:
                    not_submitted.append(reply)
                else:
                    yield reply

        def add(reply: _Reply, verdict: Verdict) -> None:
            attempt = _attempt(reply, verdict, turn, self.reward_of(verdict))
            collected.attempts.append(attempt)
            on_attempt(attempt)
            if self.watch:
                self.watch.judged()

        with closing(rollouts):
            for reply, verdict in _verify(self.verifier, new_sources()):
                verdicts[reply.key] = verdict
                for phase, spent in verdict.seconds.items():
                    collected.seconds[phase] += spent
                add(reply, verdict)
        for reply in not_submitted:
            if reply.rollout.finish == "error":
                add(reply, _no_code(reply.question.task, "the prompt leaves no room for a reply in the model's context"))
            elif reply.malformed:
                add(reply, _no_code(reply.question.task, reply.malformed))
            else:
                add(reply, verdicts.get(reply.key) or self.known[reply.key])
        self.known.update((key, verdict) for key, verdict in verdicts.items() if verdict.status not in UNKNOWN)
        sampling_s = max((a.rollout.ended_s for a in collected.attempts), default=0.0)
        collected.seconds["generate"] += sampling_s
        collected.seconds["verify"] += max(0.0, time.perf_counter() - started - sampling_s)
        collected.attempts.sort(key=lambda a: a.order)
        return collected

    def _asked(self, task: Task) -> list[Message]:
        gpu = self.verifier.gpu() if self.name_gpu and self.style == "chat" else ""
        return task_messages(task, self.style, self.precision, gpu=gpu, facts=self.facts, template=self.template)

    def _question(self, task: Task, group: int, member: int | None, messages: list[Message]) -> Question:
        ids: Any = self.tokenizer(prompt_text(messages, self.tokenizer), add_special_tokens=False)["input_ids"]
        return Question(task, group, member, messages, ids)

    def read(self, task: Task, rollout: Rollout) -> tuple[str, str, str]:
        """(Candidate's text, what the model wrote where that is another text, why no candidate could be made of it)."""
        ids = rollout.token_ids[:-1] if rollout.finish == "stop" else rollout.token_ids
        text: Any = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        if self.style not in GRAPH_STYLES:
            return text, "", ""
        if rollout.finish == "error":
            return text, text, ""
        from kernrl.tasks.nano.form import MalformedReplyError, candidate

        try:
            return candidate(task, text), text, ""
        except MalformedReplyError as error:
            return text, text, str(error)

    def _reply(self, question: Question, rollout: Rollout, seen: set[tuple[str, str]]) -> _Reply:
        text, reply, malformed = self.read(question.task, rollout)
        key = (question.task.id, candidate_key(text))
        return _Reply(question, rollout, text, key, key in seen, reply, malformed)


def _verify(verifier: Verifier, replies: Iterator[_Reply]) -> Iterator[tuple[_Reply, Verdict]]:
    """Each reply with its verdict, in completion order.

    The verifier numbers candidates in the order in which it takes them, and may take them in a thread of its own: a reply
    is in `taken` before the verifier has it, and so before its verdict comes back.
    """
    taken: list[_Reply] = []

    def pairs() -> Iterator[tuple[Task, str]]:
        for reply in replies:
            taken.append(reply)
            yield reply.question.task, reply.text

    for index, verdict in verifier.verify_many(pairs()):
        yield taken[index], verdict


def _attempt(reply: _Reply, verdict: Verdict, turn: int, reward: Reward | None) -> Attempt:
    question = reply.question
    return Attempt(
        task=question.task,
        group=question.group,
        member=reply.rollout.sample if question.member is None else question.member,
        turn=turn,
        messages=question.messages,
        prompt_ids=question.prompt_ids,
        rollout=reply.rollout,
        text=reply.text,
        key=reply.key[1],
        verdict=verdict,
        reward=reward,
        repeated=reply.repeated,
        reply=reply.reply,
    )


def _follow_up(attempt: Attempt) -> list[Message]:
    return [
        {"role": "assistant", "content": attempt.reply or attempt.text},
        {"role": "user", "content": feedback(attempt.verdict)},
    ]


def _no_code(task: Task, reason: str) -> Verdict:
    return Verdict(Status.NO_CODE, Stage.PARSE, reason, task.id, "", task.precision)
