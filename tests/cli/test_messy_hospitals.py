"""Three hospitals' exports, from the files to predictions in four commands, beside pandas and scikit-learn by hand."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedtilt as ft

pandas = pytest.importorskip("pandas")
EXAMPLES = Path(__file__).parents[2] / "examples"
RENAME = {
    "Alter": "age", "Geschlecht": "sex", "Thrombozyten": "platelets", "Glukose": "glucose", "Kreatinin": "creatinine",
    "Diagnose (Schlüssel)": "diagnosis", "Raucher": "smoker", "Aufnahme": "admitted", "Wiederaufnahme": "readmitted",
}  # fmt: skip
MISSING = ["unbekannt", "-999", "9999999"]
SETTINGS = [
    "--set=data.rename={" + ", ".join(f'"{old}" = "{new}"' for old, new in RENAME.items()) + "}",
]


@pytest.fixture
def make_messy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "messy_hospitals", raising=False)
    import messy_hospitals

    return messy_hospitals.make_messy


def by_hand(path: Path, separator: str, decimal: str, encoding: str) -> "pandas.DataFrame":
    """One export, read with care."""
    frame = pandas.read_csv(path, sep=separator, encoding=encoding, dtype=str).rename(columns=RENAME)
    frame = frame.apply(lambda column: column.str.strip().replace(MISSING, np.nan))
    thousands = {",": ".", ".": ","}[decimal]
    for name in ("age", "platelets", "glucose", "creatinine"):
        texts = frame[name].str.replace("mmol/l", "", case=False).str.replace(thousands, "").str.replace(decimal, ".")
        frame[name] = texts.astype(float)
    frame["smoker"] = frame["smoker"].str.casefold().str[0].map({"j": 1.0, "y": 1.0, "n": 0.0})
    frame["sex"] = frame["sex"].str.casefold().replace("w", "f")
    formats = ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%d %b %Y"]
    dates = [pandas.to_datetime(frame["admitted"], format=each, errors="coerce") for each in formats]
    frame["admitted"] = dates[0].fillna(dates[1]).fillna(dates[2]).fillna(dates[3])
    return frame.assign(days=(frame["admitted"] - pandas.Timestamp("2025-01-01")).dt.days)


@pytest.mark.slow
def test_from_files_to_predictions_in_four_commands(fedtilt, tmp_path: Path, make_messy) -> None:
    patients = make_messy(tmp_path, rows=300, new=400)
    target = ["--target", "readmitted"]
    shown = fedtilt("data", "show", "exports", *target, *SETTINGS)
    assert shown.code == 0, shown.err
    assert shown.out.count("far outside its other numbers, which count as missing") == 2  # and no other warning
    assert shown.out.count("warning") == 2
    read = "-999, 9999999 read as missing in", "unbekannt read as missing", "F is f too"
    for text in ("berlin.csv cp1252", "thousands separated by '.'", "unit mmol/l", "written as", "from j, ja", *read):
        assert text.casefold() in " ".join(shown.out.split()).casefold(), text
    assert fedtilt("init", "hospitals.toml", "--table", "exports", *target, *SETTINGS).code == 0
    truth, ours = [patient[-1] for patient in patients["new"]], {}
    for model, hidden in (("mlp", "[16]"), ("logistic", "")):
        quick = ["train.workers=0", "train.rounds=15", f"model.name={model}", f"model.hidden={hidden}"]
        quick = ["--method", "fedavg", *(f"--set={each}" for each in [*quick, "train.baselines=false"])]
        result = fedtilt("run", "hospitals.toml", "--out", model, *quick)
        assert result.code == 0, result.err
        result = fedtilt("predict", model, "new.csv", "--method", "fedavg", "--to", f"{model}.csv")
        assert result.code == 0, result.err
        with (tmp_path / f"{model}.csv").open(newline="") as file:
            predicted = list(csv.DictReader(file))
        ours[model] = roc_auc_score(truth, [float(row["probability of yes"]) for row in predicted])

    files = {"berlin": (";", ",", "latin-1"), "london": (",", ".", "utf-8"), "wien": (";", ",", "utf-8-sig")}
    hand = pandas.concat([by_hand(tmp_path / f"exports/{name}.csv", *how) for name, how in files.items()])
    data = ft.data.table(tmp_path / "exports", target="readmitted", rename=RENAME)
    train = hand.iloc[data.rows_train.numpy()]
    numbers, names = ["age", "platelets", "glucose", "creatinine", "smoker", "days"], ["sex", "diagnosis"]
    prepare = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numbers),
            ("names", OneHotEncoder(handle_unknown="ignore"), names),
        ]
    )
    model = make_pipeline(prepare, LogisticRegression(max_iter=1000))
    model.fit(train[[*numbers, *names]], train["readmitted"].str.casefold().str[0].isin(["j", "y"]))
    new = by_hand(tmp_path / "new.csv", ";", ",", "cp1252")
    theirs = roc_auc_score(truth, model.predict_proba(new[[*numbers, *names]])[:, 1])
    assert ours == {"mlp": pytest.approx(theirs, abs=0.01), "logistic": pytest.approx(theirs, abs=0.01)}
    assert theirs > 0.75


def test_every_cell_is_read_as_it_was_meant(tmp_path: Path, make_messy) -> None:
    patients = make_messy(tmp_path, rows=120, new=60)
    data = ft.data.table(tmp_path / "exports", target="readmitted", rename=RENAME)
    clean = pandas.DataFrame(
        [patient for name in ("berlin", "london", "wien") for patient in patients[name]],
        columns=["age", "sex", "platelets", "glucose", "creatinine", "diagnosis", "smoker", "admitted", "readmitted"],
    )
    clean["sex"] = ["w" if n < 120 and sex == "f" else sex for n, sex in enumerate(clean["sex"])]  # as Berlin writes it
    clean["smoker"] = clean["smoker"].astype(float)
    expected = ft.data.transform(clean, like=data)
    found = np.empty_like(expected.numpy())
    found[data.rows_train], found[data.rows_test] = data.x_train, data.x_test
    np.testing.assert_allclose(found, expected, atol=1e-5)
    again = [patient[-1] for name in ("berlin", "london", "wien") for patient in patients[name]]
    assert data.y_train.tolist() == [int(again[row]) for row in data.rows_train]
    new = pandas.DataFrame(patients["new"], columns=clean.columns).assign(smoker=lambda f: f["smoker"].astype(float))
    np.testing.assert_allclose(
        ft.data.transform(tmp_path / "new.csv", like=data), ft.data.transform(new, like=data), atol=1e-5
    )
