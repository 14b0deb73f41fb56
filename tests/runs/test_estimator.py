"""The classifier for scikit-learn: its checks, and the models of a plain run."""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedtilt as ft
from examples.patients import write_patients
from fedtilt.errors import InputError

pandas = pytest.importorskip("pandas")
FAST = {"model": ft.models.logistic, "rounds": 2, "epochs": 3, "lr": 0.5}


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, object]:
    path = tmp_path_factory.mktemp("estimator") / "patients.csv"
    write_patients(path, 300)
    frame = pandas.read_csv(path).drop(columns="patient")
    return frame, frame.pop("diagnosis")


def test_it_passes_all_checks_of_scikit_learn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its checks have tiny and odd data
        checks = check_estimator(ft.FairClassifier(**FAST), on_fail=None, on_skip=None)
    failed = {check["check_name"]: check["exception"] for check in checks if check["status"] == "failed"}
    assert failed == {}
    assert len(checks) > 40


def test_every_row_is_predicted_by_the_model_of_its_client(patients: tuple, tmp_path: Path) -> None:
    frame, y = patients
    model = ft.FairClassifier(ft.ditto(0.1), client="hospital", **FAST).fit(frame, y)
    found = model.predict_proba(frame)
    assert model.classes_.tolist() == ["ill", "well"]
    for name in ("north", "south", "island"):
        model.export(tmp_path / f"{name}.safetensors", name)
        rows = np.flatnonzero(frame["hospital"] == name)
        own = ft.load(tmp_path / f"{name}.safetensors")
        np.testing.assert_allclose(own.predict_proba(frame.iloc[rows]), found[rows], rtol=1e-5)
        assert own.class_names == ("ill", "well")
    elsewhere = frame.assign(hospital="new")
    model.export(tmp_path / "shared.safetensors")
    np.testing.assert_allclose(
        ft.load(tmp_path / "shared.safetensors").predict_proba(elsewhere), model.predict_proba(elsewhere), rtol=1e-5
    )
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), found)
    assert not hasattr(again, "result_")
    assert model.score(frame, y) > 0.8


def test_it_is_a_part_of_searches_and_takes_names_of_methods(patients: tuple) -> None:
    frame, y = patients
    default = ft.FairClassifier(client="hospital", **FAST)
    assert default.method == "fedtilt"
    assert default._method() == ft.fedtilt(tau=2, lam=0, mu=1)
    search = GridSearchCV(ft.FairClassifier(client="hospital", **FAST), {"method": ["fedavg", ft.term(1.0)]}, cv=2)
    assert search.fit(frame, y).best_score_ > 0.7


def test_labels_that_sort_by_value_and_clients_of_arrays() -> None:
    rng = np.random.default_rng(0)
    labels = np.array(["9", "10"], object)[rng.integers(0, 2, 80)]
    x = np.column_stack([np.where(labels == "9", 1.0, -1.0) + rng.normal(0, 0.1, 80), rng.integers(0, 2, 80)])
    model = ft.FairClassifier(ft.ditto(0.1), client=1, **FAST).fit(x, labels)
    assert model.predict(x).tolist() == labels.tolist()
    assert model.classes_.tolist() == ["10", "9"]
    assert sorted(model.result_["ditto"].client_names) == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "method = 'magic' is unknown; choose one of"),
        ({"method": [ft.fedavg()]}, r"method = \[Method\(.*\] is unknown; choose one of .*, or an object"),
        ({"settings": {"rounds": 3}}, "settings has 'rounds', which FairClassifier sets itself; use its arguments"),
        ({"client": "clinic"}, "client = 'clinic' is no column; the columns are age, sex"),
        ({"settings": {"lrr": 1}}, "lrr is not a training setting; did you mean lr"),
    ],
)
def test_mistakes(patients: tuple, arguments: dict, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        ft.FairClassifier(**arguments, **FAST).fit(*patients)
    with pytest.raises(ft.InputError, match="X has 300 rows and y has 299"):
        ft.FairClassifier(**FAST).fit(patients[0], patients[1][1:])


def test_labels_with_blanks_and_columns_with_numbers() -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({0: rng.integers(0, 2, 80), 1: rng.normal(size=80)})
    model = ft.FairClassifier(client=0, **FAST).fit(frame, np.where(frame[1] > 0, " no", "yes "))
    assert model.classes_.tolist() == [" no", "yes "]
    assert model.score(frame, np.where(frame[1] > 0, " no", "yes ")) > 0.9
    with pytest.raises(ft.InputError, match="the labels 'a', 'a ' are empty or differ only in blanks; give"):
        ft.FairClassifier(client=0, **FAST).fit(frame, np.where(frame[1] > 0, "a", "a "))


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_missing_labels_are_counted(patients: tuple, missing: object) -> None:
    frame, labels = patients
    changed = labels.astype(object).tolist()
    changed[7] = changed[9] = missing
    with pytest.raises(ft.InputError, match="y has no label in 2 of 300 rows, the first row 7; drop these rows"):
        ft.FairClassifier(**FAST).fit(frame, pandas.Series(changed, dtype=object))
    with pytest.raises(ft.InputError, match="y has no label in 1 of 300 rows, the first row 0"):
        ft.FairClassifier(**FAST).fit(frame, [float("nan"), *(labels == labels[0]).astype(float)[1:]])


def test_it_works_in_a_pipeline_and_says_what_text_needs(patients: tuple[object, object], tmp_path: Path) -> None:
    frame, label = patients
    parts = [("scaled", StandardScaler(), ["age", "pressure"]), ("same", "passthrough", ["hospital", "ward"])]
    columns = ColumnTransformer(parts, verbose_feature_names_out=False)
    classifier = ft.FairClassifier(ft.ditto(1.0), client="hospital", **FAST)
    with pytest.raises(InputError, match=r"an array has numbers only; .* set_output\(transform='pandas'\)"):
        make_pipeline(columns, classifier).fit(frame, label)
    pipeline = make_pipeline(clone(columns).set_output(transform="pandas"), clone(classifier)).fit(frame, label)
    joblib.dump(pipeline, tmp_path / "pipeline.joblib")
    again = joblib.load(tmp_path / "pipeline.joblib")
    assert (again.predict_proba(frame) == pipeline.predict_proba(frame)).all()
    assert pipeline.score(frame, label) > 0.6


@pytest.mark.parametrize(
    "clients",
    [lambda n: f"site {n} ", lambda n: np.datetime64("2026-01-01") + n, lambda n: 1e16 + 2 * n, lambda n: n == 0],
    ids=["blanks", "dates", "large numbers", "truth values"],
)
def test_every_client_is_predicted_by_its_own_model_however_its_name_is_written(clients: Callable[[int], Any]) -> None:
    rng = np.random.default_rng(0)
    number = rng.integers(0, 3, 90)
    frame = pandas.DataFrame({"site": [clients(int(n)) for n in number], "x": rng.normal(size=90)})
    label = np.where(frame.x * (number - 1) + 0.3 * rng.normal(size=90) > 0, "yes", "no")  # no model suits all
    classifier = ft.FairClassifier(ft.ditto(0.01), client="site", **FAST).fit(frame, label)
    trained = classifier.result_["ditto"]
    assert classifier.score(frame, label) == pytest.approx(float(trained.sums.sum() / trained.total.sum()))
    shared = ft.FairClassifier(ft.fedavg(), client="site", **FAST).fit(frame, label)
    assert classifier.score(frame, label) > shared.score(frame, label)
