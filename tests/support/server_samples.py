"""What every model server must give back: samples of the weights it was last sent, with exact log-probs."""

from typing import Any

import torch

from kernrl.config import ReinforceConfig
from kernrl.policy.load import Policy, add_lora
from kernrl.rollouts.engines.engine import Rollout, Sampling
from kernrl.training.open_engine import server_engine
from support.tiny import tiny_policy

END: Any = tiny_policy().tokenizer.eos_token_id
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]
SAMPLING = Sampling(n=3, max_tokens=12, temperature=0.7, seed=1, stop_ids=(END, *range(100, 130)))


def opened(server, policy, tmp_path, **changes):
    """The engine of `reinforce` on a server."""
    settings = {"temperature": 0.7, "server_timeout_s": 20, **changes}
    config = ReinforceConfig(
        model="m", output=tmp_path / "run", engine="server", server_url=server.url, lora=hasattr(policy.model, "peft_config"),
        **settings,
    )  # fmt: skip
    return server_engine(config, policy, tmp_path / "run")


def sample(engine, prompts=PROMPTS, sampling=SAMPLING) -> list[Rollout]:
    """Rollouts by prompt and sample."""
    return sorted(engine.generate(prompts, sampling), key=lambda r: (r.prompt, r.sample))


def changed(policy, seed=3):
    """Other weights, in place."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.3)


def policy_for(way):
    """A tiny policy, with adapters where `--weight-sync` is `lora`."""
    policy = tiny_policy()
    return Policy(add_lora(policy.model, rank=4, alpha=8), policy.tokenizer) if way == "lora" else policy


def check_samples_are_of(policy, rollouts, temperature=0.7):
    """Their log-probs are those of a plain forward pass of the policy, in float64."""
    for r in rollouts:
        prompt = PROMPTS[r.prompt]
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + r.token_ids])).logits[0].double()
        scores = torch.log_softmax(logits / temperature, -1)[len(prompt) - 1 : -1]
        expected = scores.gather(1, torch.tensor(r.token_ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(r.logprobs).double(), expected, atol=1e-4)
