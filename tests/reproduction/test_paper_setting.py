"""Metrics that the README and the built-in specs promise."""

import os
from pathlib import Path
from statistics import mean

import pytest

from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load


def test_fedtilt_beats_ditto_in_the_demo(tmp_path: Path) -> None:
    """`make demo`: under flipped labels FedTilt beats Ditto by ten points or more, and is fairer on both levels."""
    result = run_spec(load("digits"), tmp_path / "run")[0]
    fedtilt, ditto = result["fedtilt"], result["ditto"]
    assert fedtilt.accuracy >= ditto.accuracy + 10
    assert fedtilt.client_fairness < ditto.client_fairness
    assert fedtilt.client_data_fairness[0] < ditto.client_data_fairness[0]


@pytest.mark.slow
@pytest.mark.skipif("FEDTILT_DATA" not in os.environ, reason="needs MNIST; FEDTILT_DATA names its folder")
def test_mnist_in_the_setting_of_the_paper(tmp_path: Path) -> None:
    """The paper reports 98.53 % and a client fairness of 1.67; seeds differ by 0.3 in the latter."""
    spec = load("mnist", methods=["fedtilt"], seeds=3)
    results = [result["fedtilt"] for result in run_spec(spec, tmp_path / "run").values()]
    assert mean(result.accuracy for result in results) == pytest.approx(98.5, abs=0.4)
    assert mean(result.client_fairness for result in results) == pytest.approx(1.6, abs=0.4)
