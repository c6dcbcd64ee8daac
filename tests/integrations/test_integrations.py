"""The verifier inside other people's trainers."""

import pytest
from support.tiny import FakeVerifier, save_tiny_policy, tiny_tasks, verdict_of

from kernrl.errors import UsageError
from kernrl.integrations.trl import kernel_reward, prompt_rows
from kernrl.rollouts.reward import reward
from kernrl.verifier.base.verdict import Status


def judge(text):
    if "infra" in text:
        return verdict_of(text, Status.INFRA_ERROR)
    share = sum("a" <= c <= "z" for c in text) / max(1, len(text))
    return verdict_of(text, speedup_x=0.1 + 2.9 * share)


def test_a_reward_function_takes_both_forms_of_completions():
    one, two = tiny_tasks(2)
    verifier = FakeVerifier(judge)
    rewards = kernel_reward([one, two], verifier)
    message = [{"role": "assistant", "content": "1"}]
    found = rewards(
        prompts=["", "", ""], completions=["aaaa", message, "infra"], task_id=[one.id, two.id, one.id], step=[1, 2, 3]
    )
    assert found == [pytest.approx(1.0), pytest.approx(0.5), None]
    assert verifier.asked == [(one.id, "aaaa"), (two.id, "1"), (one.id, "infra")]
    with pytest.raises(UsageError, match="task-9"):
        rewards(completions=["x"], task_id=["task-9"])


def test_rows_of_a_dataset_lead_back_to_their_tasks():
    tasks = tiny_tasks(3)
    rows = prompt_rows(tasks, style="nano")
    assert [row["task_id"] for row in rows] == [task.id for task in tasks]
    assert all(row["prompt"][-1]["role"] == "user" for row in rows)


@pytest.mark.slow
def test_trl_trains_on_it_for_two_steps(tmp_path):
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tasks = save_tiny_policy(tmp_path / "model"), tiny_tasks(4)
    verifier = FakeVerifier(judge)
    settings = GRPOConfig(
        output_dir=str(tmp_path / "run"),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        use_cpu=True,
        bf16=False,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
    )
    data = Dataset.from_list(prompt_rows(tasks, style="nano"))
    trainer = GRPOTrainer(model=str(model), reward_funcs=kernel_reward(tasks, verifier), args=settings, train_dataset=data)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "reward" in line]
    assert len(logged) == 2
    assert len(verifier.asked) == 8
    expected = sum(reward(judge(text)).value for _, text in verifier.asked[:4]) / 4
    assert logged[0]["reward"] == pytest.approx(expected, rel=1e-3)


def test_a_taskset_of_verifiers_scores_by_the_verdict(tmp_path, monkeypatch):
    pytest.importorskip("verifiers.v1")
    import asyncio
    from types import SimpleNamespace

    from verifiers.v1.utils.loaders import load_taskset

    from kernrl.integrations import verifiers_env
    from kernrl.tasks.rows import write_tasks

    tasks = tiny_tasks(2)
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    asked = []

    def verify(task, text):
        asked.append((task.id, task.pytorch_code))
        return judge(text)

    monkeypatch.setattr(verifiers_env, "HardenedVerifier", lambda config: SimpleNamespace(verify=verify))
    (tmp_path / "kernels.py").write_text(
        'from kernrl.integrations.verifiers_env import KernelTaskset\n__all__ = ["KernelTaskset"]\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = verifiers_env.KernelTasksetConfig(id="kernels", source=str(tmp_path / "tasks.jsonl"))
    first, second = load_taskset(config)
    assert first.data.id == "task-0"
    assert "ModelNew" in first.data.prompt
    assert second.data.row["pytorch_code"] == tasks[1].pytorch_code

    def score(task, text):
        return asyncio.run(task.verified(SimpleNamespace(last_reply=text)))

    assert score(second, "aaaa") == pytest.approx(1.0)
    assert asked == [(tasks[1].id, tasks[1].pytorch_code)]
    with pytest.raises(RuntimeError, match="infra_error"):
        score(first, "infra")
