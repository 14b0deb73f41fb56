"""The split of a table: by column, share, group or time, per client, and a function of rows and seed alone."""

import numpy as np
import pytest
import torch

from fedtilt.data import Federation, table
from fedtilt.data.sampling import newest, random_groups
from fedtilt.data.tables.schema import Schema
from fedtilt.errors import InputError

pandas = pytest.importorskip("pandas")


def visits(n=400, seed=0):
    """Several visits of each patient, at two hospitals."""
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, n // 4, n)
    frame = pandas.DataFrame(
        {
            "pressure": rng.normal(size=n),
            "patient": [f"P{p}" for p in patient],
            "hospital": np.where(patient % 3 == 0, "north", "south"),
            "when": pandas.Timestamp("2025-01-01") + pandas.to_timedelta(rng.permutation(n), unit="D"),
            "ill": np.where(rng.random(n) < 0.3, "yes", "no"),
        }
    )
    return frame


def test_a_split_column():
    fold = np.where(np.arange(400) % 5 == 0, "Test", "train")
    data = table(visits().assign(fold=fold), target="ill", split_column="fold", drop=["patient", "hospital", "when"])
    assert data.rows_test.tolist() == list(range(0, 400, 5))
    assert data.schema.inputs == ("pressure",)
    fold[3] = "val"
    with pytest.raises(InputError, match="has 'val' in row 3, column 'fold'; a split column has train and test"):
        table(visits().assign(fold=fold), target="ill", split_column="fold")
    with pytest.raises(
        InputError, match="split_column = 'fold' has only 'train' in DataFrame; mark some rows train and some te"
    ):
        table(visits().assign(fold="train"), target="ill", split_column="fold")
    with pytest.raises(InputError, match="test_share = 0.5 has no effect, because test data is given; leave it out"):
        table(visits().assign(fold="train"), target="ill", split_column="fold", test_share=0.5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_rows_of_a_group_are_on_one_side(seed):
    frame = visits(seed=seed)
    data = table(frame, target="ill", client="hospital", split_group="patient", seed=seed)
    sides = [set(frame["patient"].iloc[positions.numpy()]) for positions in (data.rows_train, data.rows_test)]
    assert not sides[0] & sides[1]
    assert "patient" not in data.schema.inputs
    for client in range(2):
        rows, train = data.client_test == client, data.client_train == client
        share = rows.sum() / (rows.sum() + train.sum())
        assert share == pytest.approx(0.25, abs=0.02)


def test_a_group_of_two_clients_is_refused():
    frame = visits().assign(hospital=["north", "south"] * 200)
    with pytest.raises(
        InputError, match="split_group = 'patient' has a value with rows of several clients in DataFrame"
    ):
        table(frame, target="ill", client="hospital", split_group="patient")


def test_large_groups():
    rng = np.random.default_rng(0)
    for group in (np.zeros(12, int), np.repeat([0, 1], 6), np.repeat([0, 1, 2], 4)):
        test = random_groups(group, 3, rng)
        assert len(np.unique(group[test])) == (0 if len(np.unique(group)) == 1 else 1)
        assert not test.all()


def test_the_newest_rows_of_each_client_are_test_data():
    frame = visits()
    data = table(frame, target="ill", client="hospital", time="when", test_share=0.2, drop=["patient"])
    assert "when" in data.schema.inputs  # it stays a feature
    for client, name in enumerate(data.client_names):
        sides = ((data.rows_train, data.client_train), (data.rows_test, data.client_test))
        times = [frame["when"].iloc[rows[own == client].numpy()] for rows, own in sides]
        assert times[0].max() < times[1].min()
        assert len(times[1]) == round(0.2 * (frame["hospital"] == name).sum())
    with pytest.raises(InputError, match="time = 'hospital' is a category in DataFrame; name a column of dates or"):
        table(frame, target="ill", time="hospital")
    frame.loc[9, "when"] = pandas.NaT
    with pytest.raises(InputError, match="an empty cell in row 9, column 'when'; fill it or drop the row"):
        table(frame, target="ill", time="when")
    assert newest(np.ones(4), 2).tolist() == [False] * 4  # one time only: nothing is newer


def test_a_schema_of_an_earlier_version_has_the_same_roles():
    schema = table(visits(), target="ill", time="when").schema
    former = {"split_time" if key == "time" else key: value for key, value in schema.to_json().items()}
    assert Schema.from_json(former) == schema


def test_two_ways_to_split_are_refused():
    with pytest.raises(InputError, match="split_group and time are two ways to split; choose one"):
        table(visits(), target="ill", split_group="patient", time="when")
    with pytest.raises(
        InputError, match="target and split_group are both 'ill'; they must be two columns of DataFrame"
    ):
        table(visits(), target="ill", split_group="ill")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"split": "fold"},
            "split = 'fold' is not possible; choose random, proportional or time; a column with train ",
        ),
        ({"split": "time"}, "split = 'time' needs a table and its column of times; name the column: time = …"),
        ({"split": "random", "time": "when"}, "time = 'when' has no effect with split = 'random'; set split = 'time'"),
        (
            {"split": "proportional", "split_group": "patient"},
            "split_group = 'patient' and split = 'proportional' are",
        ),
    ],
)
def test_ways_to_draw_that_do_not_fit_together(settings, message):
    with pytest.raises(InputError, match=message):
        table(visits(), target="ill", client="hospital", **settings)


@pytest.mark.parametrize("split", ["random", "proportional", "time"])
def test_validation_rows_are_drawn_as_test_rows_are(split):
    """The rows of a person on one side, the newest ones, or the classes in proportion."""
    columns = {"time": {"time": "when"}, "random": {"split_group": "patient"}}.get(split, {})
    frame = visits()
    data = table(frame, target="ill", client="hospital", split=split, **columns)
    federation = Federation.build(data, validation=0.2)
    for client in range(2):
        train, held = (index[client] for index in (federation.train_index, federation.validation_index))
        rows = [frame.iloc[data.rows_train[side].numpy()] for side in (train, held)]
        assert len(held) == pytest.approx(0.2 * (len(held) + len(train)), abs=2)
        if split == "random":
            assert not set(rows[0]["patient"]) & set(rows[1]["patient"])
        elif split == "time":
            assert rows[0]["when"].max() < rows[1]["when"].min()
        else:
            share = (rows[1]["ill"] == "yes").mean()
            assert share == pytest.approx(pandas.concat(rows)["ill"].eq("yes").mean(), abs=1 / len(held))
    drawn = federation.drawn
    assert (drawn.split, drawn.fixed_shares) == (split, split == "proportional")
    assert drawn.in_words() in federation.about_data


@pytest.mark.parametrize("settings", [{}, {"split_group": "patient"}, {"time": "when"}])
def test_a_split_depends_on_rows_and_seed_alone(settings):
    frame = visits()
    first, again = (table(frame, target="ill", client="hospital", seed=3, **settings) for _ in range(2))
    assert torch.equal(first.rows_test, again.rows_test)
    other = table(frame.assign(pressure=0.0, extra=1), target="ill", client="hospital", seed=3, **settings)
    assert torch.equal(first.rows_test, other.rows_test)
    changed = table(frame, target="ill", client="hospital", seed=4, **settings)
    assert torch.equal(first.rows_test, changed.rows_test) == ("time" in settings)
