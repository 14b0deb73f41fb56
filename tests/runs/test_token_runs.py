"""Runs on tokens and on dictionaries of tensors: bit-identical to one tensor."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedtilt as ft

LENGTH, TOKENS = 6, 20


def clients(named):
    rng = np.random.default_rng(0)
    for _ in range(4):
        y = rng.integers(0, 2, 40)
        tokens = rng.integers(0, TOKENS // 2, (40, LENGTH)) + y[:, None] * rng.integers(
            0, TOKENS // 2 + 1, (40, LENGTH)
        )
        mask = (rng.random((40, LENGTH)) < 0.8).astype(np.int64)
        x = {"input_ids": tokens, "attention_mask": mask} if named else np.concatenate([tokens, mask], axis=1)
        yield x, y


class BagOfTokens(nn.Module):
    """The mean embedding of the tokens that the mask keeps; a dictionary or one tensor with tokens and mask."""

    def __init__(self, returns="tensor"):
        super().__init__()
        self.embedding, self.head, self.returns = nn.Embedding(TOKENS, 8), nn.Linear(8, 2), returns

    def forward(self, x=None, *, input_ids=None, attention_mask=None):
        if x is not None:
            input_ids, attention_mask = x.split(LENGTH, dim=1)
        weight = attention_mask[:, :, None].float()
        logits = self.head((self.embedding(input_ids) * weight).sum(1) / weight.sum(1).clamp(min=1))
        return logits if self.returns == "tensor" else SimpleNamespace(logits=logits)


@pytest.mark.parametrize("returns", ["tensor", "object"])
def test_a_dictionary_gives_the_bits_of_one_tensor(returns, tmp_path):
    def run(named, returns="tensor", out=None):
        federation = ft.Federation.from_clients(list(clients(named)), outliers="flips", validation=0.2, seed=1)
        methods = [ft.fedtilt(tau=1, lam=1, mu=0.1), ft.fedavg()]
        return ft.run(
            methods, federation, lambda: BagOfTokens(returns), rounds=3, participation=0.5, epochs=2, lr=0.5, seed=1,
            device="cpu", out=out,
        )  # fmt: skip

    one, several = run(named=False), run(named=True, returns=returns, out=tmp_path / "run")
    for method in ("fedtilt", "fedavg"):
        for a, b in zip(one[method].shared.parameters(), several[method].shared.parameters(), strict=True):
            assert torch.equal(a, b)
        assert one[method].accuracy == several[method].accuracy
    assert several["fedavg"].accuracy > 60
    for a, b in zip(one["fedtilt"].personal(0).parameters(), several["fedtilt"].personal(0).parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_model_that_takes_other_names_is_rejected():
    federation = ft.Federation.from_clients(list(clients(named=True)))
    with pytest.raises(ft.InputError, match=r"the model does not take samples of shape .*'input_ids': \(6,\)"):
        ft.run([ft.fedavg()], federation, nn.Linear(LENGTH, 2), rounds=1)
    with pytest.raises(
        ft.InputError, match="mlp takes one tensor, and samples are a dictionary of input_ids, attention"
    ):
        ft.run([ft.fedavg()], federation, ft.models.mlp, rounds=1)


def test_a_model_for_numbers_is_rejected_on_tokens():
    federation = ft.Federation.from_clients(list(clients(named=False)))
    with pytest.raises(ft.InputError, match="int64 samples are tokens for nn.Embedding, make them float32 if they are"):
        ft.run([ft.fedavg()], federation, ft.models.mlp, rounds=1)
