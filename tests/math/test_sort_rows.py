"""Sorting by columns in C agrees with `Tensor.sort`."""

import pytest
import torch

from fedtilt.math import sort_rows as module
from fedtilt.math.sort_rows import sort_rows
from fedtilt.training import native


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 14, 33, 100])
@pytest.mark.parametrize("columns", [1, 15, 16, 1000])
def test_values_are_those_of_torch(count: int, columns: int) -> None:
    rows = torch.randn(count, columns + 3, generator=torch.Generator().manual_seed(count)).mul(9).round()  # with ties
    rows = rows[:, 2:-1]  # rows are not next to each other
    assert torch.equal(sort_rows(rows), rows.sort(dim=0).values)
    cut = (count - 1) // 2
    assert torch.equal(sort_rows(rows, cut), rows.sort(dim=0).values[cut : count - cut])


@pytest.mark.skipif(not native.available(), reason="needs a C compiler")
def test_the_library_is_used_unless_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(5, 40)
    calls = []
    load = module._load_library
    monkeypatch.setattr(module, "_load_library", lambda: calls.append(1) or load())
    sort_rows(rows)
    assert len(calls) == 1
    sort_rows(rows.double())
    sort_rows(rows.T.contiguous().T)
    monkeypatch.setenv("FEDTILT_NATIVE", "0")
    sort_rows(rows)
    assert len(calls) == 1
    assert load() is not None
