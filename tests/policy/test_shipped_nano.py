"""The nano that the repository ships: plain transformers loads it, and what it writes for held-out tasks is right."""

import subprocess
import sys

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from kernrl.policy.nano import CONTEXT
from kernrl.policy.shipped_nano import trained_nano
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.nano.form import ask, candidate

TASKS = 3


@pytest.fixture(scope="module")
def folder():
    return trained_nano()


def test_it_is_small_and_in_shards_that_a_repository_can_hold(folder):
    shards = list(folder.glob("*.safetensors"))
    assert all(shard.stat().st_size <= 15 << 20 for shard in shards)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 36 << 20
    card = (folder / "README.md").read_text()
    assert "kernrl sft" in card
    assert "pass@8" in card


def test_a_command_that_only_asks_where_it_is_loads_no_model_library():
    code = "import sys, kernrl.policy.shipped_nano as s; s.trained_nano(); print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.slow
def test_plain_transformers_samples_right_candidates_from_it(folder, cpu_verifier):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() <= 18_000_000
    assert model.config.max_position_embeddings == CONTEXT
    tasks = load_tasks("graph-heldout", limit=TASKS).tasks
    # all at once: most of a small model's time is spent between its kernels
    ids = tokenizer.apply_chat_template(
        [[{"role": "user", "content": ask(task, "fp32", fast=True)}] for task in tasks],
        add_generation_prompt=True,
        padding=True,
        tokenizer_kwargs={"padding_side": "left"},
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**ids, do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=1024)
    replies = tokenizer.batch_decode(output[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    files = [candidate(task, reply) for task, reply in zip(tasks, replies, strict=True)]
    verdicts = [verdict for _, verdict in cpu_verifier.verify_many(zip(tasks, files, strict=True))]
    assert len(verdicts) == TASKS
    assert sum(verdict.correct for verdict in verdicts) >= TASKS - 1, [v.reason for v in verdicts]
