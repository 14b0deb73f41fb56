"""Warnings as a careful colleague would give them: one test each, and how they are emitted."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedtilt as ft
from fedtilt.data import Dataset, Federation, load, table
from fedtilt.errors import InputWarning

pandas = pytest.importorskip("pandas")


def clean(n=200):
    """A table that nothing is to be said about."""
    rng = np.random.default_rng(0)
    return pandas.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "y": rng.integers(0, 2, n)})


def about(frame, **settings):
    """All warnings about a table of one client."""
    data = table(frame.assign(site="all"), target="y", client="site", **settings)
    return list(Federation.build(data).warnings)


def test_a_table_without_problems():
    assert about(clean()) == []


def test_a_client_without_weight():
    assert about(clean().assign(w=1.0), weight="w") == []
    assert about(clean().assign(w=0.0), weight="w") == [
        "every training sample of 'all' has weight 0, so nothing is learnt from it"
    ]


def test_an_identifier():
    texts = clean().assign(code=[f"X{n}" for n in range(200)])
    assert about(texts) == [
        "column 'code' looks like an identifier and is dropped; add it to drop, or set its kind in a schema"
    ]
    for name, numbers in (("row", range(7, 207)), ("patient_id", np.random.default_rng(0).permutation(10**6)[:200])):
        assert about(clean().assign(**{name: numbers})) == [
            f"column {name!r} looks like an identifier: a different whole number in every row; drop it"
        ]
    assert about(clean().assign(income=np.random.default_rng(0).permutation(10**6)[:200])) == []
    assert about(texts, drop=["code"]) == []


def test_free_text():
    notes = clean().assign(note=[f"the {n}th note of a long list of notes" for n in range(200)])
    (text,) = about(notes)
    assert text.startswith("column 'note' is free text or empty and is dropped")


def test_a_constant():
    expected = ["column 'c' is constant in the training rows; its input is always the same: drop it"]
    assert about(clean().assign(c=0.1)) == expected
    assert about(clean().assign(c="x")) == expected


def test_a_copy_of_the_label():
    frame = clean()
    message = "column 'c' alone predicts 'y' in every row; if it is a copy of the label, drop it"
    for copy in (frame["y"], 1 - frame["y"], frame["y"].map({0: "no", 1: "yes"}), frame["y"].map({0: "p", 1: "q"}),
                 frame["y"] * 10 + frame["a"].clip(-3, 3)):  # fmt: skip
        assert about(frame.assign(c=copy)) == [message]
    almost = frame["y"].copy()
    almost.iloc[::10] = 1 - almost.iloc[::10]
    assert about(frame.assign(c=almost)) == []


def test_a_copy_of_a_number_to_predict():
    frame = clean().assign(y=np.random.default_rng(1).normal(size=200))
    assert about(frame, task="regression") == []  # all values differ, but the features do not tell the target
    message = "column 'c' alone predicts 'y' in every row; if it is a copy of the label, drop it"
    for copy in (3 * frame["y"] + 1, -frame["y"], np.exp(frame["y"])):
        assert about(frame.assign(c=copy), task="regression") == [message]


def test_heavy_imbalance():
    frame = clean(600).assign(y=[1 if n % 60 == 0 else 0 for n in range(600)])
    (text,) = about(frame)
    assert text.startswith(
        "class '0' has 441 training samples and class '1' has 9; accuracy says little about the rare"
    )


def test_copies_of_training_rows_among_test_rows():
    frame = clean()
    doubled = pandas.concat([frame, frame.iloc[:50]], ignore_index=True)
    (text,) = about(doubled)
    copies = int(text.split()[0])
    data = table(doubled, target="y")
    train = {tuple(row) for row in data.x_train.tolist()}
    assert copies == sum(tuple(row) in train for row in data.x_test.tolist()) > 0
    assert f"{copies} of {len(data.y_test)} test samples are copies of training samples" in text


def test_people_with_equal_inputs_are_no_copies():
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"age": rng.integers(20, 30, 400), "sex": rng.choice(["f", "m"], 400)})
    frame["y"] = np.where(rng.random(400) < 0.5 + 0.2 * (frame["sex"] == "f"), "yes", "no")
    assert about(frame) == []
    frame["y"] = frame["sex"]  # and where inputs tell the label, they may be
    assert any("are copies of training samples" in text for text in about(frame))
    numbers = frame.assign(y=rng.normal(size=400))
    assert Federation.build(table(numbers, target="y", task="regression"), clients=2).warnings == ()


def test_a_client_with_few_samples():
    frame = clean().assign(site=["small"] * 8 + ["large"] * 192)
    fed = Federation.build(table(frame, target="y", client="site"))
    assert fed.warnings == ("client 'small' (6) has fewer than 10 training samples",)
    many = Federation.build(load("digits"), clients=200, partition="iid")
    few, untrained = many.warnings
    assert few == "clients '0' (6), '1' (6), '2' (6) and 197 more have fewer than 10 training samples"
    assert untrained == (
        "342 of 599 test rows are of a class that their client, 185 of 200, has no training row of; they count as what "
        "they are"
    )


def test_a_class_without_test_or_training_samples():
    data = Dataset(
        name="mine", x_train=torch.randn(40, 2), y_train=torch.arange(40) % 2, x_test=torch.randn(20, 2),
        y_test=torch.zeros(20).long(), classes=3, class_names=("a", "b", "c"),
    )  # fmt: skip
    assert Federation.build(data, clients=2, partition="iid").warnings == (
        "class 'b' has no test sample; no figure says anything about it: add test samples",
    )
    data = replace(data, y_train=torch.zeros(40).long(), y_test=torch.arange(20) % 3)
    assert Federation.build(data, clients=2, partition="iid").warnings == (
        "classes 'b', 'c' have test samples but no training sample; add some",
    )


def test_values_that_overflow():
    (text,) = about(clean().assign(huge=np.arange(200) * 1e199))
    assert text == "column 'huge' has values up to 2e+201, too large to standardise; its input is 0: divide it"
    (text,) = about(clean().assign(huge=[None, *(n * 1e199 for n in range(199))]))
    assert "too large to standardise" in text
    frame = clean().assign(large=clean()["a"] * 1e39)  # beyond float32, but not once it is standardised
    data = table(frame, target="y")
    assert about(frame) == []
    assert torch.allclose(data.x_train[:, 2], data.x_train[:, 0])


@pytest.mark.parametrize(
    ("texts", "value", "other", "word"),
    [
        ([f"{n / 7:.2f}" if n % 3 else "<0.5" for n in range(200)], "0.14", "<0.5", "numbers"),
        ([f"{n}" if n % 3 else f"{n}-" for n in range(1, 201)], "1", "3-", "numbers"),
        ([f"{1 + n % 12}/{13 + n % 16}/{2000 + n // 80}" if n % 5 > 1 else f"{13 + n % 16}/1/{2000 + n // 60}"
          for n in range(200)], "3/15/2000", "13/1/2000", "dates"),
    ],
)  # fmt: skip
def test_numbers_and_dates_beside_text_are_not_taken_for_names_in_silence(texts, value, other, word):
    (text,) = about(clean().assign(crp=texts))
    assert text.startswith(f"column 'crp' has {word} such as {value!r} beside text such as {other!r}, and is ")
    ids = [f"{n:05}" if n % 3 else f"P{n}" for n in range(200)]
    (text,) = about(clean().assign(crp=ids))
    assert text == "column 'crp' looks like an identifier and is dropped; add it to drop, or set its kind in a schema"


def test_minus_one_beside_numbers_of_which_none_is_negative():
    assert about(clean().assign(stay=[-1 if n % 8 == 0 else 3 + n % 40 for n in range(200)])) == [
        "column 'stay' has -1 in 21 training rows, and all others are in 4 to 42; if it means unknown, set missing = "
        "['-1']"
    ]
    assert about(clean().assign(stay=[n % 3 - 1 for n in range(200)])) == []


def test_numbers_to_predict_that_may_mean_unknown():
    stays = [-999 if n % 8 == 0 else 3 + n % 40 for n in range(200)]
    (text,) = about(clean().assign(y=stays), task="regression")
    assert re.fullmatch(
        r"target 'y' has -999 in \d+ training rows, and all others are in \d to 42; if it means unknown, set missing = "
        r"\['-999'\] and drop_unlabelled = true",
        text,
    )
    data = table(clean().assign(y=stays), target="y", task="regression", missing=["-999"], drop_unlabelled=True)
    assert (len(data.y_train) + len(data.y_test), float(data.y_train.min()) > 0) == (175, True)


def test_numbers_that_look_like_months():
    (text,) = about(clean().assign(when=[f"{1 + n % 12}.{2019 + n % 7}" for n in range(200)]), decimal=".")
    assert text == (
        "column 'when' has numbers such as 3.2026, which look like months; write them as dates, such as 2026-03-01"
    )
    assert about(clean().assign(when=[1 + n % 12 + (n % 7) / 10 for n in range(200)])) == []


def test_dates_that_can_be_read_in_two_ways():
    frame = clean().assign(when=[f"{1 + n % 12:02d}/{1 + n % 9:02d}/2026" for n in range(200)])
    (text,) = about(frame)
    assert text.startswith("column 'when' has dates that can be month/day or day/month; they are read as %m/%d/%Y")


def test_images_with_channels_last():
    x, y = torch.rand(40, 8, 8, 3), torch.arange(40) % 2
    data = Dataset(name="mine", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10], classes=2, image=True)
    (text,) = Federation.build(data, clients=2).warnings
    assert text.startswith("images of shape (8, 8, 3) look like (height, width, channels) and are read as 8 channels; ")
    first = replace(data, x_train=x.permute(0, 3, 1, 2), x_test=x[:10].permute(0, 3, 1, 2))
    assert Federation.build(first, clients=2).warnings == ()


@pytest.mark.parametrize("last", [[nn.Softmax(dim=1)], []])
def test_a_model_that_ends_in_softmax(last):
    fed = Federation.build(load("digits"), clients=4, max_train=20)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *last)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ft.run([ft.fedavg()], fed, model, rounds=1, workers=0)
    texts = {str(w.message) for w in caught if issubclass(w.category, InputWarning)}
    expected = "the model ends in Softmax, but the loss takes logits, so training is slow; remove the last layer"
    assert texts == ({expected} if last else set())


@pytest.mark.parametrize("last", [[nn.Sigmoid()], []])
def test_a_model_that_ends_in_sigmoid(last):
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    fed = Federation.from_clients([(x, (x[:, 0] > 0).long())] * 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ft.run([ft.fedavg()], fed, nn.Sequential(nn.Linear(3, 1), *last), rounds=1, workers=0)
    texts = {str(w.message) for w in caught if issubclass(w.category, InputWarning)}
    expected = "the model ends in Sigmoid, but the loss takes logits, so training is slow; remove the last layer"
    assert texts == ({expected} if last else set())


@pytest.mark.parametrize(
    "build",
    [
        lambda frame: Federation.build(table(frame, target="y"), clients=2, partition="iid"),
        lambda frame: Federation.from_clients([frame, frame], target="y"),
    ],
)
def test_warnings_are_emitted_at_the_line_of_the_user(build):
    with pytest.warns(InputWarning) as caught:
        fed = build(clean().assign(c=1))
    assert [str(w.message) for w in caught] == list(fed.warnings)
    assert {w.filename for w in caught} == {__file__}


def test_the_built_in_data_sets_have_no_warnings():
    assert Federation.build(load("digits"), clients=20).warnings == ()
    for name in ("toy-1", "toy-2", "toy-3"):
        assert Federation.build(load(name)).warnings == ()
