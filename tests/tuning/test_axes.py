"""The axes of a search: lists and ranges, from Python and from the command line."""

import math

import numpy as np
import pytest

from fedtilt.errors import InputError
from fedtilt.tuning.axes import DEFAULT_AXES, Range, axes_of, grid, grid_size, parse_axes, training_axes


def test_axes_are_lists_or_ranges() -> None:
    assert axes_of(None) == dict(DEFAULT_AXES)
    assert axes_of({"tau": np.array([0.0, 1.0, 0.0]), "epochs": range(1, 3)}) == {"tau": (0.0, 1.0), "epochs": (1, 2)}
    assert parse_axes([" tau = 0, 1e1,0 ", "lam=-inf"]) == {"tau": (0, 10.0), "lam": (-math.inf,)}
    assert parse_axes([]) is None
    assert parse_axes(["aggregator=median,krum", "nesterov=true,false"]) == {
        "aggregator": ("median", "krum"),
        "nesterov": (True, False),
    }


def test_a_range_is_logarithmic_where_that_is_natural() -> None:
    assert [Range(1e-3, 1e-1).log, Range(1, 9).log, Range(0, 50).log, Range(-2, 2).log] == [True, False, False, False]
    assert Range(1e-3, 1e-1).rounded(0.0123456) == 0.0123
    assert Range(0.0015, 0.1).rounded(0.00150000001) == 0.0015


def test_a_grid_has_every_combination() -> None:
    axes = axes_of({"tau": [0, 1], "optimizer": ["sgd", "adam"]})
    assert grid_size(axes) == 4
    assert list(grid(axes))[1] == {"tau": 0, "optimizer": "adam"}
    assert grid_size(axes_of({"tau": [0, 1], "lr": Range(0.1, 1)})) == math.inf


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"tau": []}, "over tau is empty; give at least one value"),
        ({"tau": ""}, "over tau is empty; give at least one value"),
        ({"lr": "0.1..0.01"}, "over lr: the range 0.1..0.01 is empty or not finite"),
        ({"lr": "0.1.."}, "over lr = '0.1..' is not a range of numbers"),
        ({"lr": "0..inf"}, "the range 0..inf is empty or not finite"),
        ({"tau": 3}, "over tau = 3 is neither a list nor a range; write [3]"),
        ({}, "over must be a dict of settings and their values"),
    ],
)
def test_empty_axes_are_rejected(over: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        axes_of(over)
    assert message in str(error.value)


def test_options_are_parsed_or_rejected() -> None:
    for texts, message in ((["tau"], "is not KEY=VALUES"), (["tau=1", "tau=2"], "--over tau is given twice")):
        with pytest.raises(InputError, match=message):
            parse_axes(texts)
    with pytest.raises(InputError, match="cannot have a logarithmic scale"):
        Range(0, 1, log=True)


def test_what_belongs_to_a_machine_is_not_tuned() -> None:
    assert {"batch_size", "epochs", "optimizer", "participation", "server_optimizer.lr", "loss.gamma"} <= set(
        training_axes()
    )
    assert not {"rounds", "seed", "device", "workers", "backend", "loss.class_weights"} & set(training_axes())
