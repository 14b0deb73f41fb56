import numpy as np
import pytest
import torch

from fedtilt import seeds


def splitmix64(state: int) -> int:
    """The published finaliser in plain Python integers."""
    mask = 2**64 - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_bits_are_splitmix64() -> None:
    key = seeds.key(7, "order", round=3, client=11)
    expected = [splitmix64(key + i * 0x9E3779B97F4A7C15) for i in range(1, 101)]
    assert [b % 2**64 for b in seeds.bits(key, (100,)).tolist()] == expected


def test_streams_depend_on_every_part_of_the_key_but_not_on_global_state() -> None:
    keys = {
        seeds.key(s, p, round=r, client=c)
        for s in (0, 1, 12)
        for p in ("a", "b")
        for r in (0, 1, 2)
        for c in (0, 1, 2, 12)
    }
    assert len(keys) == 3 * 2 * 3 * 4
    torch.manual_seed(1)
    first = seeds.bits(5, (10,))
    torch.manual_seed(2)
    assert torch.equal(seeds.bits(5, (10,)), first)
    assert torch.equal(seeds.bits(5, (20,))[:10], first)


def test_rows_of_a_stream_can_be_drawn_alone() -> None:
    rows = torch.tensor([4, 0, 2])
    for draw in (seeds.uniform, seeds.normal):
        assert torch.equal(draw(3, (3, 2, 5), rows=rows), draw(3, (6, 2, 5))[rows])
    assert torch.equal(seeds.integers(3, (3,), 7, rows=rows), seeds.integers(3, (6,), 7)[rows])


def test_distributions() -> None:
    n = 200_000
    u, z = seeds.uniform(1, (n,)), seeds.normal(2, (n,))
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / n) ** 0.5
    assert abs(u.var() - 1 / 12) < 1e-3
    assert abs(z.mean()) < 4 / n**0.5
    assert abs(z.var() - 1) < 0.02
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01
    counts = torch.bincount(seeds.integers(3, (n,), 7), minlength=7)
    assert len(counts) == 7
    assert (counts - n / 7).abs().max() < 5 * (n / 7) ** 0.5


def test_choose_is_uniform() -> None:
    hits = torch.zeros(20)
    for r in range(2000):
        chosen = seeds.choose(seeds.key(0, "selection", round=r), 20, 5)
        assert len(set(chosen)) == 5
        hits[chosen] += 1
    assert (hits - 500).abs().max() < 5 * 500**0.5


@pytest.mark.parametrize("bits", [0, -1], ids=["first", "last"])
def test_extreme_normal_numbers_are_finite(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(seeds, "bits", lambda *_: torch.full((1,), bits))
    assert 8 < seeds.normal(0, (1,)).abs() < 9
