"""The choice of tokens, where the random numbers are the worst there are."""

import pytest
import torch

from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.token_choice import scores_to_maximise


@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.9}], ids=str)
@pytest.mark.parametrize("number", [0.0, 2**-53, 1 - 2**-53])
def test_no_noise_brings_back_a_token_that_is_cut(monkeypatch, cut, number):
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda noise, generator: noise.fill_(number))
    scaled = torch.tensor([[0.0, 3.0, 2.9, -50.0], [-torch.inf, 1.0, 5.0, 4.9]])
    scores = scores_to_maximise(scaled, Sampling(1, 1, 1.0, **cut), torch.Generator())
    assert scores.argmax(dim=-1).tolist() == [1, 2]
    assert not scores.isnan().any()
    assert (scores[:, 0] == -torch.inf).all()


def test_the_noise_is_what_torch_draws_from_an_exponential_distribution():
    scaled = torch.zeros(6, 300)
    noise = torch.empty(6, 300).exponential_(generator=torch.Generator().manual_seed(3))
    scores = scores_to_maximise(scaled, Sampling(1, 1, 1.0), torch.Generator().manual_seed(3))
    torch.testing.assert_close(scores, -noise.log())


def test_rows_that_are_left_draw_what_they_draw_among_all():
    scaled, generator, other = torch.randn(5, 300), torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    scores = scores_to_maximise(scaled, Sampling(1, 1, 1.0, top_k=9), generator)
    left = torch.tensor([1, 4])
    assert torch.equal(scores_to_maximise(scaled[left], Sampling(1, 1, 1.0, top_k=9), other, (left, 5)), scores[left])
    assert torch.equal(generator.get_state(), other.get_state())


def test_temperature_0_draws_nothing():
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    scaled = torch.randn(2, 5)
    assert scores_to_maximise(scaled, Sampling(1, 1, 0.0, top_k=1), generator) is scaled
    assert torch.equal(generator.get_state(), state)
