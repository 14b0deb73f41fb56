"""Runs with outliers that are drawn once."""

import dataclasses
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt.flower import Task
from fedtilt.flower.site_data import site_federation
from fedtilt.spec import federation_of, load


def build(**settings: object) -> ft.Federation:
    data = ft.data.load("digits")
    return ft.Federation.build(data, clients=4, max_train=20, outliers="flips", outlier_redraw="once", **settings)


def test_other_draws_of_the_same_data_are_rejected_when_a_run_continues(tmp_path: Path) -> None:
    def run(federation: ft.Federation) -> ft.Result:
        return ft.run([ft.fedavg()], federation, ft.models.logistic, rounds=2, epochs=1, out=tmp_path / "run")

    federation = build()
    assert run(federation)["fedavg"].accuracy == run(federation)["fedavg"].accuracy
    with pytest.raises(ft.InputError, match="was started with another division of the samples"):
        run(dataclasses.replace(federation, seed=1))
    with pytest.raises(ft.InputError, match="was started with outliers"):
        run(build(outlier_flip_to="nearest"))


def test_a_site_has_the_outliers_of_the_simulator() -> None:
    overrides = ["outliers.redraw=once", "outliers.flip_to=nearest", "clients.count=4"]
    simulated = federation_of(load("digits", overrides=overrides), 0)
    task = Task(spec="digits")
    resolved = task.resolve({"method": "fedtilt", "set": "\n".join(overrides)})
    for site in range(4):
        federation = site_federation(task, resolved.spec, {"partition-id": site}, None)
        x, y = federation.train(site, seed=0, round=2)
        assert x.equal(simulated.train(site, seed=0, round=2)[0])
        assert y.equal(simulated.train(site, seed=0, round=1)[1])
        assert not y.equal(simulated.clean_train(site)[1])
