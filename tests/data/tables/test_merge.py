"""Summaries of sites: what they contain, and that merging them equals the pooled table."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtilt.data import Column, Schema, table, transform
from fedtilt.data.tables.merge import merge
from fedtilt.data.tables.reader import open_reader
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.errors import InputError
from tests.data.tables.summaries import summarise
from tests.data.tables.test_schema import patients

pandas = pytest.importorskip("pandas")
NAMES = ["age", "ward", "smokes", "admitted", "note"]


def summary(frame, site, **settings):
    classes = sorted(set(frame["diagnosis"]))
    names = [name for name in NAMES if name in frame]
    return summarise(open_reader(frame), names, site=site, classes=classes, **settings)


def sites(counts=(400, 150, 90)):
    """Sites whose ages differ by far, and the pooled table."""
    frames = {f"site {n}": patients(count, seed=n) for n, count in enumerate(counts)}
    for n, frame in enumerate(frames.values()):
        frame["age"] = frame["age"] * (1 + n) + 1e6 * n
        frame.loc[frame["ward"] == "d", "ward"] = "d" if n == 0 else "a"  # rare at all sites together
    return frames


def test_merging_sites_equals_the_pooled_table():
    frames = sites()
    summaries = [summary(frame, site) for site, frame in frames.items()]
    merged = merge([SiteSummary.from_json(json.loads(json.dumps(s.to_json()))) for s in summaries])
    pooled = merge([summary(pandas.concat(frames.values(), ignore_index=True), "all")])
    assert merged.classes == pooled.classes == ("ill", "well")
    for column in pooled.columns:
        other = merged.column(column.name)
        assert replace(other, fill=None, mean=None, deviation=None) == replace(
            column, fill=None, mean=None, deviation=None
        )
        if column.mean is not None:
            assert other.mean == pytest.approx(column.mean, rel=1e-14)
            assert other.deviation == pytest.approx(column.deviation, rel=1e-13)
    ages = np.sort(pandas.concat(frames.values())["age"].dropna())
    rank = np.searchsorted(ages, merged.column("age").fill) / len(ages)
    assert abs(rank - 0.5) <= 1 / 30 + 1 / len(ages)
    assert pooled.column("age").fill == np.median(ages)  # exact with one site


def test_a_table_with_clients_is_merged_from_its_clients():
    """The simulator's schema is that of a deployment whose sites are the clients."""
    frames = sites()
    together = pandas.concat([frame.assign(hospital=site) for site, frame in frames.items()], ignore_index=True)
    data = table(together, target="diagnosis", client="hospital", drop=["patient"])
    parts = []
    for number, (site, frame) in enumerate(frames.items()):
        positions = data.rows_train[data.client_train == number].numpy()
        own = together.iloc[positions].drop(columns="hospital").sample(frac=1, random_state=0)[list(frame)[::-1]]
        parts.append(summary(own, site))
    deployed = merge(parts)
    for column in data.schema.columns:
        other = deployed.column(column.name)
        if column.mean is not None:
            assert (other.mean, other.deviation) == pytest.approx((column.mean, column.deviation), rel=1e-13)
        assert replace(other, mean=column.mean, deviation=column.deviation) == column
    files = table(frames, target="diagnosis", drop=["patient"])
    assert files.schema == replace(data.schema, client=None)
    assert torch.equal(files.x_train, data.x_train)
    assert torch.equal(transform(together, like=replace(deployed, columns=tuple(map(deployed.column, NAMES)))),
                       transform(together, like=data))  # fmt: skip


def test_the_order_of_rows_and_columns_does_not_matter():
    frame = patients()
    shuffled = frame.sample(frac=1, random_state=1)[list(frame)[::-1]]
    assert summary(frame, "a") == summary(shuffled, "a")


def test_rare_categories_and_few_rows_are_not_sent():
    frame = patients()
    ward = next(c for c in summary(frame, "a").columns if c.name == "ward")
    assert set(ward.categories) == {"a", "b", "c"}
    assert ward.rare == 2  # their number, not their name
    assert "'d'" not in repr(summary(frame, "a"))
    text = json.dumps(summary(frame, "a").to_json())
    assert "said that it hurts" not in text
    for count, sent in ((4, 0), (5, 1), (14, 1), (15, 3), (240, 15)):
        ages = pandas.DataFrame({"age": np.arange(count) + 0.5, "diagnosis": "ill"})
        (column,) = summary(ages, "a").columns
        assert len(column.quantiles) == sent  # each stands for 5 rows or more


def test_a_category_needs_min_count_rows_at_one_site():
    halves = [patients().assign(ward=["x"] * n + ["y"] * (240 - n)) for n in (4, 6)]
    for frames, known in ((halves[:1] * 2, {"y"}), (halves, {"x", "y"})):
        merged = merge([summary(frame, str(n)) for n, frame in enumerate(frames)])
        assert set(merged.column("ward").categories) == known
        assert merged.column("ward").other  # a site says that it has four rows of a rare name, but not which
    schema = Schema(columns=(), min_count=7)
    assert merge([summary(halves[1], "a", schema=schema)]).column("ward").categories == ("y",)


def test_kinds_that_sites_disagree_on():
    frame = patients()
    empty = frame.assign(age=np.nan, ward=None)
    assert merge([summary(empty, "a"), summary(frame, "b")]).column("age").kind == "number"
    assert merge([summary(empty, "a"), summary(empty, "b")]).column("age").kind == "ignore"
    unique = frame.assign(ward=frame["patient"])
    assert merge([summary(unique.head(60), "a"), summary(frame, "b")]).column("ward").kind == "category"
    assert merge([summary(unique, "a"), summary(frame.head(60), "b")]).column("ward").kind == "identifier"
    with pytest.raises(
        InputError, match="site 'c' has column 'age' as category, and it is number at site 'b'; make them the same"
    ):
        merge([summary(frame, "b"), summary(frame.assign(age=frame["ward"]), "c")])
    given = Schema(columns=(Column(name="age", kind="category"),))
    assert merge([summary(frame, "b", schema=given)], given).column("age").kind == "category"


def test_a_site_with_other_columns_or_classes_is_refused_by_name():
    frame = patients()
    with pytest.raises(InputError, match="site 'south' has no column 'age', which site 'north' has; add it there"):
        merge([summary(frame, "north"), summary(frame.drop(columns="age"), "south")])
    with pytest.raises(InputError, match="site 'north' has no column 'age', which site 'south' has"):
        merge([summary(frame.drop(columns="age"), "north"), summary(frame, "south")])
    only = Schema(columns=(), classes=("ill", "healthy"))
    with pytest.raises(
        InputError, match="site 'north' has the class 'well', which the schema lacks; its classes are il"
    ):
        merge([summary(frame, "north")], only)
    one_class = frame[frame["diagnosis"] == "ill"]
    assert merge([summary(one_class, "north"), summary(frame, "south")]).classes == ("ill", "well")


def test_complete_columns_are_not_summarised():
    schema = table(patients(), target="diagnosis").schema
    assert summary(patients(), "a", schema=schema).columns == ()
    assert merge([summary(patients(seed=1), "a", schema=schema)], schema) == schema
