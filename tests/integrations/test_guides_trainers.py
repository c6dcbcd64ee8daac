"""The guide's examples for TRL, SkyRL and verl run as printed, with stand-ins for these packages.

OpenRLHF's is in `test_openrlhf.py`; `test_integrations.py` trains with TRL's own trainer, given the same arguments.
"""

import re
import sys
from types import SimpleNamespace

from support import ROOT
from support.stand_in_module import stand_in_module
from support.tiny import FakeVerifier, tiny_tasks, verdict_of

from kernrl.integrations import skyrl, verl
from kernrl.tasks.rows import write_tasks
from kernrl.verifier import verifier

GUIDE = (ROOT / "docs" / "guides" / "own_loop.md").read_text().partition("## Other trainers")[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def example(of: str) -> str:
    (text,) = (text for text in EXAMPLES if of in text)
    return text


def test_every_trainers_example_is_short():
    assert len(EXAMPLES) == 4
    assert all(sum(bool(line.strip()) for line in text.splitlines()) <= 12 for text in EXAMPLES)


def test_trl_gets_the_reward_and_the_rows(monkeypatch, tmp_path):
    trained = []

    class Trainer:
        def __init__(self, model, reward_funcs, args, train_dataset):
            self.reward, self.args, self.rows = reward_funcs, args, list(train_dataset)

        def train(self):
            ids = [row["task_id"] for row in self.rows]
            trained.append((self.args.output_dir, ids, self.reward(completions=["a"] * len(ids), task_id=ids)))

    class Verifier(FakeVerifier):
        def __init__(self):
            super().__init__(lambda text: verdict_of(text, speedup_x=2.0))

        def __enter__(self):
            return self

        def __exit__(self, error, *_):
            assert trained or error, "the trainer needs the verifier"

    tasks = tiny_tasks(3)
    (tmp_path / "tasks").mkdir()
    write_tasks(tmp_path / "tasks" / "tasks.jsonl", tasks)
    monkeypatch.chdir(tmp_path)
    stand_in_module(monkeypatch, "trl", GRPOTrainer=Trainer, GRPOConfig=SimpleNamespace)
    stand_in_module(monkeypatch, "datasets", Dataset=SimpleNamespace(from_list=list))
    monkeypatch.setattr(verifier, "HardenedVerifier", Verifier)
    exec(example("trl"), {})
    [(folder, ids, rewards)] = trained
    assert folder == "runs/trl"
    assert ids == [task.id for task in tasks]
    assert len(rewards) == 3
    assert all(reward > 0 for reward in rewards)


def test_skyrl_has_the_loss_in_its_registry(monkeypatch):
    registered = {}
    registry = type("PolicyLossRegistry", (), {"register": classmethod(lambda _, name, func: registered.update({name: func}))})
    stand_in_module(monkeypatch, "skyrl_train.utils.ppo_utils", PolicyLossRegistry=registry)
    monkeypatch.setitem(sys.modules, "skyrl", None)
    exec(example("skyrl"), {})
    assert registered == {skyrl.NAME: skyrl.ppo_policy_loss_fused}
    assert f"policy_loss_type={skyrl.NAME}" in GUIDE


def test_verl_has_the_loss_in_its_registry(monkeypatch):
    registered = {}
    register = lambda name: lambda function: registered.setdefault(name, function)  # noqa: E731
    stand_in_module(monkeypatch, "verl.trainer.ppo.core_algos", register_policy_loss=register)
    exec(example("verl"), {})
    assert registered == {verl.NAME: verl.policy_loss_fused}
    assert f"loss_mode={verl.NAME}" in GUIDE
