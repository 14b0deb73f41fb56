"""The table of one site: its split and summary are those of the simulator's client, and what a damaged summary is."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtilt.data import Column, Schema, table
from fedtilt.data.tables.cells import SchemaMismatch
from fedtilt.data.tables.merge import extra_columns, merge, misfits, outliers
from fedtilt.data.tables.settings import TableSettings
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.data.tables.table import open_table
from fedtilt.errors import InputError
from tests.data.tables.test_schema import patients

pandas = pytest.importorskip("pandas")
ROLES = {"target": "diagnosis", "client": "hospital"}


def hospitals():
    """Two hospitals; the second has another order of columns, one category less, and a class of its own."""
    north, south = patients(240, seed=0), patients(90, seed=1)
    south.loc[south["ward"] == "c", "ward"] = "a"
    south.loc[south.index[:12], "diagnosis"] = "unsure"
    for frame, letter in ((north, "P"), (south, "Q")):
        frame["patient"] = [f"{letter}{row // 3}" for row in range(len(frame))]
    return [north, south[list(south)[::-1]]]


def pooled(frames):
    names = ["north", "south"]
    return pandas.concat([f.assign(hospital=n) for f, n in zip(frames, names, strict=True)], ignore_index=True)


@pytest.mark.parametrize("settings", [{}, {"split_group": "patient"}, {"time": "admitted"}, {"split": "proportional"}])
def test_sites_have_the_schema_and_the_samples_of_the_simulators_clients(settings):
    frames = hospitals()
    drop = [] if "split_group" in settings else ["patient"]
    simulated = table(pooled(frames), target="diagnosis", client="hospital", drop=drop, seed=3, **settings)
    opened = [open_table(f, TableSettings(**ROLES | settings, drop=drop), site=n) for n, f in enumerate(frames)]
    agreed = merge([site.site_summary(None, 3) for site in opened], opened[0].schema)
    assert agreed == simulated.schema
    assert agreed.classes == ("ill", "unsure", "well")
    for number, site in enumerate(opened):
        data = site.with_schema(agreed).to_dataset(None, 3)
        for side in ("train", "test"):
            rows = getattr(simulated, f"client_{side}") == number
            for key in ("x", "y"):
                assert torch.equal(getattr(data, f"{key}_{side}"), getattr(simulated, f"{key}_{side}")[rows])
        assert data.client_names is None


def test_a_site_may_lack_the_column_of_the_clients_and_what_is_no_feature():
    north, south = hospitals()
    note = Column(name="note", kind="ignore")
    columns = [Column(name=name, kind="number") for name in ("age",)]
    columns += [Column(name=name, kind="category") for name in ("ward", "smokes")]
    known = Schema(columns=(*columns, Column(name="admitted", kind="date"), note), target="diagnosis")
    for frame in (north, south.drop(columns="note"), south.drop(columns="patient"), north.assign(hospital="north")):
        assert (
            open_table(frame, TableSettings(client="hospital", drop=["patient"]), known, site=1)
            .site_summary(None, 0)
            .rows
            > 60
        )
    mixed = open_table(
        north.assign(hospital=["a", "b"] * 120), TableSettings(client="hospital", drop=["patient"]), known, site=1
    )
    with pytest.raises(InputError, match="has rows of 'a' and 'b' in column 'hospital'; a site has the rows of one cl"):
        mixed.site_summary(None, 0)
    with pytest.raises(InputError, match="target = 'diagnosis' is not a column"):
        open_table(north.drop(columns="diagnosis"), TableSettings(**ROLES), site=0)


def test_a_missing_column_is_refused_unless_the_schema_allows_gaps():
    north, south = hospitals()
    known = [Column(name=name, kind=kind) for name, kind in (("ward", "category"), ("admitted", "date"))]
    age = Column(name="age", kind="number")
    strict, lenient = (
        Schema(columns=(*known, column), target="diagnosis") for column in (age, replace(age, gaps=True))
    )
    drop = ["patient", "note", "smokes"]
    lacking = south.drop(columns="age")
    with pytest.raises(InputError, match="schema = 'age' is not a column of DataFrame"):
        open_table(lacking, TableSettings(drop=drop), strict, site=1)
    sites = [open_table(frame, TableSettings(drop=drop), lenient, site=n) for n, frame in enumerate((north, lacking))]
    agreed = merge([site.site_summary(None, 0) for site in sites], lenient)
    alone = merge([sites[0].site_summary(None, 0)], lenient)
    assert agreed.column("age") == alone.column("age")
    data = sites[1].with_schema(agreed).to_dataset(None, 0)
    inputs = list(agreed.inputs)
    assert (data.x_train[:, inputs.index("age is missing")] == 1).all()
    assert data.x_train[:, inputs.index("age")].unique().numel() == 1  # the median of the other site
    files = table({"north": north, "south": lacking}, drop=drop, schema=lenient)
    assert files.schema == agreed
    with pytest.raises(InputError, match="schema = 'age' is not a column"):
        table({"north": north.drop(columns="age"), "south": lacking}, drop=drop, schema=lenient)  # nobody has it


def test_an_agreed_schema_fits_the_columns():
    north, south = hospitals()
    agreed = table(north, target="diagnosis", drop=["patient"]).schema
    site = open_table(south, TableSettings(target="diagnosis", drop=["patient"]), site=1)
    with pytest.raises(InputError, match="has 'unsure' in row .*; the schema's classes are ill, well"):
        site.with_schema(agreed).to_dataset()
    for columns, message in (
        (agreed.columns[1:], "has the column 'age', which the schema lacks; drop"),
        ((*agreed.columns, replace(agreed.columns[0], name="more")), "has no column 'more', which the schema has"),
    ):
        with pytest.raises(InputError, match=message):
            site.with_schema(agreed.with_columns(columns))


@pytest.mark.parametrize(
    ("change", "difference", "withheld"),
    [
        (lambda f: f.assign(age="secret"), "has cells in column 'age' that cannot be used", None),
        (lambda f: f.assign(age=f["admitted"]), "has a date in column 'age', which is a number in the schema", None),
        (lambda f: f.drop(columns="age"), "has no column 'age', which the schema has", None),
        (lambda f: f.drop(columns="diagnosis"), "has no column 'diagnosis', which is the target", None),
        (lambda f: f.assign(secret=1), "has the column 'secret', which the schema lacks", "has a column, which the"),
        (
            lambda f: f.assign(diagnosis="secret"),
            "has the class 'secret', which the schema lacks",
            "has a class, which",
        ),
    ],
)
def test_a_difference_has_names_and_kinds_alone(change, difference, withheld):
    north, settings = hospitals()[0], TableSettings(target="diagnosis", drop=["patient"])
    agreed = table(north, target="diagnosis", drop=["patient"]).schema
    with pytest.raises(SchemaMismatch) as error:
        open_table(change(north), settings, site=0).with_schema(agreed).to_dataset()
    assert error.value.difference == difference
    assert error.value.withheld.startswith(withheld or difference)
    assert "secret" not in error.value.withheld


def site(number, **kinds):
    """A summary with columns of these kinds."""
    columns = [summary_of(name, kind) for name, kind in kinds.items()]
    return SiteSummary(site=str(number), rows=40, classes=("a", "b"), columns=tuple(columns))


def summary_of(name, kind):
    values = {"number": np.arange(40.0), "date": pandas.date_range("2026-01-01", periods=40)}
    values |= {"category": ["x", "y"] * 20, "identifier": [f"id{n}" for n in range(40)]}
    frame = pandas.DataFrame({name: values[kind], "y": ["a", "b"] * 20})
    (column,) = open_table(frame, TableSettings(target="y"), site=0).site_summary(None, 0).columns
    return replace(column, rows=column.rows + column.missing, missing=0)


@pytest.mark.parametrize(
    ("sites", "refused"),
    [
        ([{"a": "number"}, {"a": "number"}], {}),
        ([{"a": "number", "b": "date"}, {"b": "date", "a": "number"}], {}),
        ([{"a": "number", "i": "identifier"}, {"a": "number"}], {}),
        ([{"a": "number", "b": "date"}, {"a": "number"}], {"1": "has no column 'b', which site '0' has"}),
        ([{"a": "number"}, {"a": "number", "b": "date"}], {"0": "has no column 'b', which site '1' has"}),
        ([{"a": "number"}] * 2 + [{"a": "number", "b": "date"}], {}),  # b is no feature, at that site alone
        ([{"a": "number", "b": "date"}] * 2 + [{"a": "number"}], {"2": "has no column 'b', which site '0' has"}),
        (
            [{"a": "date"}, {"a": "number"}, {"a": "number"}],
            {"0": "has column 'a' as date, and it is number at site"},
        ),
        ([{"a": "number"}, {"a": "category"}], {"1": "has column 'a' as category, and it is number at site '0'"}),
        ([{"a": "category"}, {"a": "identifier"}], {}),
    ],
)
def test_most_sites_decide_and_the_others_are_named(sites, refused):
    reasons = misfits([site(n, **kinds) for n, kinds in enumerate(sites)], Schema(columns=()))
    assert reasons.keys() == refused.keys()
    for name, start in refused.items():
        assert reasons[name].startswith(start)


def test_the_column_of_one_site_is_no_feature():
    summaries = [site(0, a="number"), site(1, a="number"), site(2, a="number", b="date")]
    assert extra_columns(summaries, Schema(columns=())) == {"b": ["2"]}
    schema = merge(summaries)
    assert [(column.name, column.kind) for column in schema.columns] == [("a", "number"), ("b", "ignore")]
    described = Schema(columns=(Column(name="b", kind="date"),))
    assert misfits(summaries, described).keys() == {"0", "1"}  # the project says that it is one


def numbers(mean, deviation, rows=100, seed=0):
    """A summary of a column of normal numbers, as a site computes it."""
    values = np.random.default_rng(seed).normal(mean, deviation, rows)
    frame = pandas.DataFrame({"x": values, "y": ["a", "b"] * (rows // 2)})
    return open_table(frame, TableSettings(target="y"), site=seed).site_summary(0.2, 0)


@pytest.mark.parametrize(
    ("sites", "named"),
    [
        ([(0, 1), (1, 1), (-2, 2), (3, 1)], {}),  # honest sites that differ
        ([(60, 15), (58, 14), (62, 16), (8, 5)], {}),  # and one for children
        ([(52.1, 0.1), (52.2, 0.1), (52.3, 0.1), (52.0, 0.1)], {}),
        ([(14, 3.5), (14.5, 3), (13, 4), (14_000, 3500)], {"3": "mean is"}),
        ([(14, 3.5), (14.5, 3), (13, 4), (14, 60)], {"3": "deviation is"}),
        ([(0, 1), (14_000, 1)], {}),  # two sites have no majority
    ],
)
def test_a_site_that_would_move_the_numbers_of_all_is_named(sites, named):
    summaries = [numbers(mean, deviation, seed=n) for n, (mean, deviation) in enumerate(sites)]
    found = outliers(summaries, Schema(columns=()))
    assert found.keys() == named.keys()
    for name, start in named.items():
        assert found[name].startswith(f"has a column 'x' whose {start}")
        assert found[name].endswith("or write the column's mean and deviation into the schema")


def test_a_claim_of_rows_gives_a_site_no_more_room():
    """With nearly all rows, its mean may be 2.5 spreads from the others', with a quarter of them, ten."""
    honest = [numbers(0, 1, seed=n) for n in range(3)]

    def liar(mean, rows):
        (column,) = numbers(mean, 1, seed=3).columns
        claimed = replace(column, rows=rows, squares=column.squares * rows / column.rows)
        return SiteSummary(site="3", rows=rows, classes=("a", "b"), columns=(claimed,))

    found = {
        (mean, rows): list(outliers([*honest, liar(mean, rows)], Schema(columns=())))
        for mean in (2, 5) for rows in (80, 10_000_000)
    }  # fmt: skip
    assert found == {(2, 80): [], (2, 10_000_000): [], (5, 80): [], (5, 10_000_000): ["3"]}


@pytest.mark.parametrize("change", [{"mean": 14.0}, {"squares": 1e-9}, {"rows": 10_000_000, "missing": 0}])
def test_a_mean_that_its_own_quantiles_cannot_have_is_damage(change):
    values = json.loads(json.dumps(numbers(0, 1).to_json()))
    assert SiteSummary.from_json(values) == numbers(0, 1)
    values["columns"][0] |= change
    values["rows"] = values["columns"][0]["rows"]
    with pytest.raises(
        InputError, match="mean and squares of column 'x' of kind 'number' are not those of rows with its quantiles"
    ):
        SiteSummary.from_json(values)


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy", "standard_exponential", "random", "pareto"])
@pytest.mark.parametrize("rows", [6, 20, 31, 75, 76, 500])
def test_the_quantiles_of_any_rows_fit_their_mean(draw, rows):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        values = rng.pareto(0.5, rows) if draw == "pareto" else getattr(rng, draw)(rows)
        if seed % 3 == 0:
            values[: rows // 2] = values[0]
        frame = pandas.DataFrame({"x": values, "y": (["a", "b"] * rows)[:rows]})
        summary = open_table(frame, TableSettings(target="y"), site=0).site_summary(0.2, 0)
        assert SiteSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


def valid():
    frame = patients().drop(columns="patient")
    return json.loads(
        json.dumps(open_table(frame, TableSettings(target="diagnosis"), site=0).site_summary(None, 0).to_json())
    )


def column(values, kind):
    return next(c for c in values["columns"] if c["kind"] == kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("rows"), "rows is missing"),
        (lambda v: v.update(more=1), "it has the unknown key 'more'"),
        (lambda v: v.update(columns=5), "object of type 'int' has no len"),
        (lambda v: v["columns"][0].update(secret=1), "has the unknown key 'secret'"),
        (lambda v: v["columns"][0].update(missing="2"), "missing = '2' is not possible; give a whole number ≥ 0"),
        (lambda v: v["columns"][0].update(kind="float"), "kind = 'float' is not possible; give one of number"),
        (lambda v: column(v, "number").update(mean=None), "has no value of mean or of squares"),
        (lambda v: v.update(rows=10**7), "it has 10000000 rows, and a site has at most 1000000"),
        (lambda v: v.update(rows=v["rows"] + 1), "rows with and .* without a value"),
        (lambda v: v.update(classes=["a"] * 2), "classes = .* is not possible; give at most 1000"),
        (lambda v: v.update(classes=[str(n) for n in range(5000)]), "classes = .* is not possible; give at most 1000"),
        (lambda v: v.update(classes=["x" * 201]), "classes = .* is not possible; give at most 1000"),
        (lambda v: v["columns"].append(copy.deepcopy(v["columns"][0])), "two columns have the same name"),
        (lambda v: v["columns"][0].update(name=7), "column 7.name = 7 is not possible; give text of"),
        (lambda v: column(v, "number").update(mean=float("nan")), "column 'age'.mean = nan is not possible; give a"),
        (lambda v: column(v, "number").update(mean=10**400), "mean = 1000.* is not possible; give a finite number"),
        (lambda v: column(v, "number").update(squares=-1.0), "squares = -1.0 is not possible; give a finite n"),
        (lambda v: column(v, "number").update(mean="1"), "mean = '1' is not possible; give a finite number"),
        (lambda v: column(v, "number").update(rows=-1), "rows = -1 is not possible; give a whole number ≥ 0"),
        (lambda v: column(v, "number").update(rows=True), "rows = True is not possible; give a whole number ≥ 0"),
        (lambda v: column(v, "number").update(quantiles=[2.0, 1.0]), "give at most 15 ascending numbers"),
        (lambda v: column(v, "number").update(quantiles=[1.0] * 16), "give at most 15 ascending numbers"),
        (lambda v: column(v, "number").update(categories={"a": 1}), "of kind 'number' has a value of categories"),
        (lambda v: column(v, "number").update(format="%d"), "of kind 'number' has a value of format"),
        (lambda v: column(v, "category").update(mean=0.0), "of kind 'category' has a value of mean"),
        (lambda v: column(v, "category").update(categories={f"{n}": 1 for n in range(10**5)}), "at most 1000"),
        (lambda v: column(v, "category")["categories"].update(x=-5), "give at most 1000 names"),
        (lambda v: column(v, "category").update(rare=7), "have .* rows instead of"),
        (lambda v: column(v, "category").update(kind=["category"]), "kind"),
    ],
)  # fmt: skip
def test_a_summary_that_no_table_gives_is_refused(change, message):
    values = valid()
    assert SiteSummary.from_json(values, 10**6).to_json()["rows"] == values["rows"]
    change(values)
    with pytest.raises(InputError, match=f"the summary of a site's table is damaged: .*({message})"):
        SiteSummary.from_json(values, 10**6)
    with pytest.raises(InputError, match="the summary of a site's table is damaged"):
        SiteSummary.from_json(None)


def test_numbers_that_float64_cannot_add_are_a_constant():
    huge = [replace(site(n, a="number"), columns=(replace(summary_of("a", "number"), mean=m),))
            for n, m in enumerate((1e308, -1e308, 1.7e308))]  # fmt: skip
    merged = merge(huge).column("a")
    assert (merged.mean, merged.deviation) == (0.0, 0.0)
