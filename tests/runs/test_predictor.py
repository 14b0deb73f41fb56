"""What `ft.load` and `fedtilt predict` give on new data: the models of the run, with names, and bad rows named."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

import fedtilt as ft
from examples.patients import write_patients
from fedtilt.data.tables.reader import open_reader
from fedtilt.errors import InputWarning
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.files import write_json
from fedtilt.text_tables import original_text

pandas = pytest.importorskip("pandas")
SETTINGS = {"rounds": 1, "epochs": 1, "participation": 1.0, "workers": 0}
NEW = """patient,age,sex,ward,pressure,admitted
a,63.5,f,A,,2026-02-01
b,often,m,B,110,2026-02-02
c,41,m,NEW,inf,2026-02-03
d,1e300,f,A,120,2026-02-04
e,70,f,C,150,someday
f,55,f,NEW,130,2026-02-05
"""
BAD = {
    1: "'often' in column 'age', but the column has numbers",
    2: "'inf' in column 'pressure', but features are finite",
    3: "'1e+300' in column 'age', but is too far from",
    4: "'someday' in column 'admitted', but the column has dates",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predictor")
    write_patients(folder / "patients.csv", 300)
    data = ft.data.table(folder / "patients.csv", target="diagnosis", client="hospital", group="sex")
    federation, methods = ft.Federation.build(data), [ft.fedavg(), ft.ditto(0.1)]
    result = ft.run(methods, federation, ft.models.logistic, out=folder / "run", **SETTINGS)
    result.export(folder / "north.safetensors", "ditto", "north")
    result.export(folder / "north.onnx", "ditto", "north")
    result.export(folder / "shared.safetensors", "fedavg")
    (folder / "new.csv").write_text(NEW)
    (folder / "good.csv").write_text("".join(line for line in NEW.splitlines(True) if line[0] in "paf"))
    reference = torch.nn.functional.softmax(
        result["ditto"].personal("north")(ft.data.transform(folder / "good.csv", like=data)).double(), 1
    )
    torch.save(reference.detach(), folder / "reference.pt")
    return folder


@pytest.mark.parametrize("file", ["north.safetensors", "north.onnx", "run"])
def test_every_kind_of_file_predicts_what_the_model_of_the_run_does(folder: Path, file: str) -> None:
    chosen = {"method": "ditto", "client": "north"} if file == "run" else {}
    model = ft.load(folder / file, **chosen)
    assert model.class_names == ("ill", "well")
    assert len(repr(model)) < 300
    found = model.predict_proba(folder / "good.csv")
    np.testing.assert_allclose(found, torch.load(folder / "reference.pt").numpy(), rtol=1e-5)
    assert found.dtype == np.float64
    expected = np.array(["ill", "well"], object)[found.argmax(1)]
    assert model.predict(folder / "good.csv").tolist() == expected.tolist()


def test_frames_arrow_tables_and_dictionaries_are_the_file(folder: Path) -> None:
    import pyarrow.csv

    model = ft.load(folder / "north.safetensors")
    expected = model.predict_proba(folder / "good.csv")
    frame = pandas.read_csv(folder / "good.csv")
    sources = [frame, pyarrow.csv.read_csv(folder / "good.csv"), {name: frame[name].tolist() for name in frame}]
    for source in sources:
        np.testing.assert_array_equal(model.predict_proba(source), expected)
    for row in ({name: frame[name][0] for name in frame}, frame.iloc[0]):
        np.testing.assert_allclose(model.predict_proba(row), expected[:1], rtol=1e-6)
    assert list(model.rows(frame.iloc[1]).rows) == ["row 1"]
    for source, text in ((pyarrow.chunked_array([[63.5]]), "the ChunkedArray is no table"), ([1, 2], "not a list")):
        with pytest.raises(ft.InputError, match=text):
            model.predict(source)


def test_rows_that_cannot_be_used_are_named_and_left_blank(folder: Path) -> None:
    model = ft.load(folder / "north.safetensors")
    found = model.rows(folder / "new.csv", keep=["ward"])
    assert list(found.problems) == list(BAD)  # in the order of the rows
    for row, text in BAD.items():
        assert found.problems[row].startswith(text)
    used = [0, 5]
    np.testing.assert_array_equal(found.probabilities[used], model.predict_proba(folder / "good.csv"))
    assert np.isnan(found.probabilities[[1, 2, 3, 4]]).all()
    assert found.predictions[[1, 2, 3, 4]].tolist() == [None] * 4
    assert list(found.columns) == ["patient", "ward"] or list(found.columns) == ["ward"]
    with pytest.warns(InputWarning, match=r"4 of 6 rows cannot be used, and have no prediction: row 3 \('often'"):
        assert model.predict(folder / "new.csv")[1] is None


def test_the_command_writes_names_probabilities_and_problems(folder: Path, fedtilt: Callable) -> None:
    printed = fedtilt("predict", str(folder / "north.safetensors"), str(folder / "new.csv"), "--to", "out.csv")
    assert printed.code == 0
    assert "2 rows predicted: " in printed.out
    assert "4 rows without a prediction; wrote out.csv" in printed.out
    assert "row 3: 'often' in column 'age'" in printed.err
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == [f"row {n}" for n in range(2, 8)]
    reference = torch.load(folder / "reference.pt")
    for number, expected in ((0, reference[0]), (5, reference[1])):
        assert float(rows[number]["probability of ill"]) == pytest.approx(float(expected[0]), rel=1e-5)
        assert rows[number]["prediction"] == ("ill" if expected[0] > expected[1] else "well")
        assert rows[number]["problem"] == ""
    assert [rows[n]["prediction"] + rows[n]["probability of ill"] for n in BAD] == [""] * 4
    assert rows[1]["problem"] == BAD[1]
    again = fedtilt("predict", str(folder / "north.safetensors"), str(folder / "new.csv"), "--to", "out.csv")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "out.csv already exists; use --force" in again.err
    shown = fedtilt("predict", str(folder / "run"), str(folder / "good.csv"), "--method", "ditto", "--client", "north")
    assert f"{100 * reference[0, 0]:.1f} %" in shown.out


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".pq", ".xlsx"])
def test_the_suffix_says_how_predictions_are_written(folder: Path, fedtilt: Callable, suffix: str) -> None:
    """The reader of tables finds in the file what the model predicts, and a text that is no formula."""
    Path("new.csv").write_text(NEW.replace("\nf,", "\n=1+1,"))
    printed = fedtilt(
        "predict", str(folder / "north.safetensors"), "new.csv", "--keep", "admitted", "--to", f"o{suffix}"
    )
    assert printed.code == 0, printed.err
    found, expected = open_reader(f"o{suffix}"), ft.load(folder / "north.safetensors").rows("new.csv", ["admitted"])
    assert list(found.header) == expected.header()
    cells = {name: found.read(name).to_pylist() for name in found.header}
    assert [cells[name][0] for name in ("row", "patient", "prediction")] == ["row 2", "a", expected.predictions[0]]
    assert str(cells["admitted"][0]).startswith("2026-02-01")
    assert cells["probability of ill"] == pytest.approx([row[4] for row in expected.table()])
    assert original_text(cells["patient"][5]) == "=1+1"
    assert [text or None for text in cells["problem"]] == [expected.problems.get(n) for n in range(6)]


def test_empty_rows_are_skipped_and_said(folder: Path, fedtilt: Callable) -> None:
    model, lines = ft.load(folder / "north.safetensors"), (folder / "good.csv").read_text().splitlines(True)
    Path("empty.csv").write_text("".join([*lines[:2], ",,,,,\n", *lines[2:]]))
    printed = fedtilt("predict", str(folder / "north.safetensors"), "empty.csv")
    assert printed.err == "warning: empty.csv has an empty row, which is skipped\n"
    with pytest.warns(InputWarning, match="empty row") as caught:
        assert model.predict("empty.csv").tolist() == model.predict(folder / "good.csv").tolist()
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "good.csv"), "has the methods fedavg, ditto; choose one with --method"),
        (("north.safetensors", "good.csv", "--client", "north"), "client = 'north' has no effect"),
        (("north.onnx", "good.csv", "--model", "mymodels:net"), "model has no effect"),
        (("north.safetensors", "good.csv", "--keep", "shoe"), "there is no column 'shoe' to keep; the columns are"),
        (
            ("north.safetensors", "good.csv", "--threshold", "dead=0.3"),
            "the threshold is for class 'dead'; the classes",
        ),
        (("north.safetensors", "good.csv", "--threshold", "ill=3"), "must be CLASS=VALUE"),
        (("north.safetensors", "new.md"), "new.md has the suffix '.md'"),
        (("north.safetensors", "good.csv", "--to", "out.json"), "out.json has the suffix '.json'; write a .csv"),
        (("good.csv", "good.csv"), "is not a safetensors file"),
        (("absent", "good.csv", "--method", "ditto"), "absent does not exist; check the path"),
    ],
)
def test_mistakes_are_one_line(folder: Path, fedtilt: Callable, arguments: tuple[str, ...], message: str) -> None:
    files = [str(folder / name) if i < 2 else name for i, name in enumerate(arguments)]
    printed = fedtilt("predict", "--to", "out.csv", *files)
    assert (printed.code, printed.err.count("\n")) == (2, 1)
    assert message in printed.err
    assert not Path("out.csv").exists()


def test_a_missing_column_is_an_error_of_the_whole_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no.csv").write_text("age,sex\n1,f\n")
    with pytest.raises(
        ft.InputError, match="has no column 'ward', 'pressure', 'admitted', which the model was trained"
    ):
        ft.load(folder / "north.safetensors").predict(tmp_path / "no.csv")


# -- thresholds --------------------------------------------------------------------------------------------------------


def test_a_threshold_of_the_run_or_of_the_export_decides(folder: Path, fedtilt: Callable, tmp_path: Path) -> None:
    shared = ft.load(folder / "shared.safetensors")
    low = float(shared.predict_proba(folder / "good.csv")[:, 0].min())
    data = str(folder / "good.csv")
    export = ["export", str(folder / "run"), "--method", "fedavg", "--to"]
    assert fedtilt(*export, "low.safetensors", "--threshold", f"ill={low}").code == 0
    assert "Decision: 'ill' if its probability is at least" in Path("low.md").read_text()
    assert ft.load("low.safetensors").predict(data).tolist() == ["ill", "ill"]
    assert shared.with_threshold(f"ill={low}").predict(data).tolist() == ["ill", "ill"]
    assert shared.with_threshold("ill=1").predict(data).tolist() == ["well", "well"]
    chosen = folder / "run/seed-0/thresholds.json"
    write_json(chosen, {"thresholds": {"fedavg": Threshold("ill", low, "f1").to_json()}})
    try:
        assert fedtilt(*export, "chosen.safetensors").code == 0
        assert ft.load("chosen.safetensors").threshold == Threshold("ill", low, "f1")
        assert ft.load(folder / "run", method="ditto").threshold is None
    finally:
        chosen.unlink()


def test_a_threshold_goes_with_the_models_that_it_was_chosen_for(fedtilt: Callable, tmp_path: Path) -> None:
    rng, clients = np.random.default_rng(0), []
    for n in range(3):
        y = (rng.random(200) < 0.07).astype(int)
        clients.append((torch.from_numpy(rng.normal(n / 2, 1, (200, 2)) + 1.5 * y[:, None]).float(), y.tolist()))
    federation = ft.Federation.from_clients(clients, class_names=["no", "yes"], validation=0.4)
    run, methods = {**SETTINGS, "lr": 0.2, "out": "rare"}, [ft.fedavg(), ft.ditto(0.01)]
    ft.run(methods, federation, ft.models.logistic, **run)
    result = ft.run(methods, federation, ft.models.logistic, **run | {"rounds": 3})
    for name, trained in result.items():
        found, threshold = trained.predictions, trained.threshold
        assert threshold is not None
        predicted = (found.probabilities[:, 1] >= threshold.value).numpy()
        expected = f1_score(found.labels.numpy(), predicted)
        frame = trained.metrics_frame(["f1"], positive="yes", by=None, resamples=0)
        assert frame.overall["f1"] == pytest.approx(expected)  # as fedtilt metrics prints it, and an export predicts
        assert predicted.any()
        assert not (found.probabilities.argmax(1).numpy() == predicted).all()
        assert ft.load("rare", method=name, round=1).threshold is None  # the threshold is of other models
    assert ft.load("rare", method="fedavg").threshold == result["fedavg"].threshold
    assert ft.load("rare", method="ditto", client=1).threshold == result["ditto"].threshold
    export = fedtilt("export", "rare", "--method", "ditto", "--to", "shared.safetensors")  # clients use other models
    assert ft.load("shared.safetensors").threshold is None
    text = (
        f"without the threshold yes={result['ditto'].threshold.value:.4g} of the run, which was chosen for the models"
    )
    assert text in " ".join(export.out.split())
    assert text in " ".join(Path("shared.md").read_text().split())


def test_the_sets_of_a_client_of_a_shared_model_are_those_of_the_report(folder: Path, tmp_path: Path) -> None:
    frame = pandas.read_csv(folder / "patients.csv")
    data = ft.data.table(frame, target="diagnosis", client="hospital")
    federation = ft.Federation.build(data, validation=0.4)
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, out=tmp_path / "sets", **SETTINGS)
    coverage = result["fedavg"].prediction_sets(0.7).to_pandas()["coverage"]
    together = []
    for client in federation.client_names:
        rows = frame.iloc[[int(name.split()[1]) for name in federation.row_names(client, "test")]]
        truth = rows.pop("diagnosis")
        for model in (ft.load(tmp_path / "sets", client=client), ft.load(tmp_path / "sets")):
            inside = [name in found for name, found in zip(truth, model.predict_sets(rows, 0.7), strict=True)]
            together.append(100 * np.mean(inside))
        assert together[-2] == pytest.approx(coverage[client])
    assert together[1::2] != pytest.approx(coverage.tolist())  # calibrated on the samples of all clients
    with pytest.raises(ft.InputError, match="client north has no personal model of method 'fedavg'"):
        ft.load(folder / "run", method="fedavg", client="north")  # without validation data, it is the shared model


def test_a_number_that_may_be_two_clients_is_none(folder: Path, tmp_path: Path) -> None:
    frame = pandas.read_csv(folder / "patients.csv")
    number_of = {name: number for number, name in enumerate(frame.hospital.unique(), 1)}
    frame["hospital"] = frame.hospital.map(number_of)  # named 1, 2, …; as numbers, they are counted from 0
    federation = ft.Federation.build(ft.data.table(frame, target="diagnosis", client="hospital"))
    ft.run([ft.ditto()], federation, ft.models.logistic, out=tmp_path / "run", **SETTINGS)
    first, *others = federation.client_names
    assert (first, others[0]) == ("1", "2")
    by_name, by_number = ft.load(tmp_path / "run", client="1"), ft.load(tmp_path / "run", client=0)
    assert by_name.predict_proba(frame[:5]).tolist() == by_number.predict_proba(frame[:5]).tolist()
    with pytest.raises(ft.InputError, match="client = 1 may be the client named '1' or, counted from 0, another"):
        ft.load(tmp_path / "run", client=1)


# -- numbers, images, arrays -------------------------------------------------------------------------------------------


def test_numbers_are_in_the_unit_of_the_target(tmp_path: Path, fedtilt: Callable) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"dose": rng.normal(0, 1, 200), "ward": rng.choice(["a", "b"], 200)})
    frame["days"] = [f"{days:.4f} d" for days in 50 + 9 * frame.dose + rng.normal(0, 1, 200)]
    data = ft.data.table(frame, target="days", task="regression")
    federation = ft.Federation.build(data, clients=2, partition="iid")
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, **(SETTINGS | {"rounds": 5, "lr": 0.1}))
    frame[["dose", "ward"]].to_csv("new.csv", index=False)
    for name in ("m.safetensors", "m.onnx"):
        result.export(name)
        found = ft.load(name).predict("new.csv")
        expected = result["fedavg"].shared(ft.data.transform("new.csv", like=data))[:, 0].detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert abs(found.mean() - 50) < 3
        with pytest.raises(ft.InputError, match="predicts numbers, which have no probabilities"):
            ft.load(name).predict_proba("new.csv")
    printed = fedtilt("predict", "m.onnx", "new.csv")
    assert f"200 rows predicted: mean {found.mean():.4g}, from {found.min():.4g} to {found.max():.4g}" in printed.out


def test_images_as_arrays_files_and_folders(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 1, 6, 5), dtype=np.uint8)
    x, y = torch.from_numpy(pixels), torch.arange(40) % 2
    data = ft.data.Dataset(
        name="scans", x_train=x, y_train=y, x_test=x, y_test=y, classes=2, class_names=("a", "b"), image=True
    )
    federation = ft.Federation.build(data, clients=2, partition="iid")
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, **SETTINGS)
    result.export(tmp_path / "m.safetensors")
    model = ft.load(tmp_path / "m.safetensors")
    expected = result["fedavg"].shared(x[:3].float() / 255 * 2 - 1).double().softmax(1).detach().numpy()
    (tmp_path / "scans").mkdir()
    for i in range(3):
        image.fromarray(pixels[i, 0]).save(tmp_path / f"scans/{i}.png")
    np.save(tmp_path / "x.npy", pixels[:3])
    for source in (pixels[:3], x[:3], x[:3].float() / 255, tmp_path / "scans", tmp_path / "x.npy"):
        np.testing.assert_allclose(model.predict_proba(source), expected, rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(tmp_path / "scans/1.png"), expected[1:2], rtol=1e-5)
    (tmp_path / "scans/1.png").write_bytes(b"no image")
    found = model.rows(tmp_path / "scans")
    assert list(found.rows) == ["0.png", "1.png", "2.png"]
    assert "1.png cannot be read" in found.problems[1]
    np.testing.assert_allclose(found.probabilities[[0, 2]], expected[[0, 2]], rtol=1e-5)
    with pytest.raises(ft.InputError, match=r"samples have the shape \(5, 6\), and .* takes \(1, 6, 5\)"):
        model.predict(np.zeros((2, 5, 6)))
    with pytest.raises(ft.InputError, match=r"pixels must be uint8, or floats in \[0, 1\]"):
        model.predict(np.full((1, 1, 6, 5), 200.0))


@pytest.mark.filterwarnings("ignore:.*rows cannot be used")
def test_arrays_are_read_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(2)]
    result = ft.run([ft.fedavg()], ft.Federation.from_clients(clients), ft.models.logistic, **SETTINGS)
    numbers = np.array([[1, 0, 1], [0, 1, 1]])
    expected = result["fedavg"].shared(torch.tensor(numbers).float()).double().softmax(1).detach().numpy()
    for name in ("m.safetensors", "m.onnx"):
        result.export(tmp_path / name)
        model = ft.load(tmp_path / name)
        for same in (numbers, numbers.astype(bool), numbers.tolist(), numbers.astype(np.uint8), torch.tensor(numbers)):
            np.testing.assert_allclose(model.predict_proba(same), expected, rtol=1e-5)
        found = model.rows(np.array([[1, np.nan, 1], [0, 1, 1], [np.inf, 0, 0]]))
        np.testing.assert_allclose(found.probabilities, [[np.nan] * 2, expected[1], [np.nan] * 2], rtol=1e-5)
        assert found.predictions[[0, 2]].tolist() == [None, None]
        assert found.problems == dict.fromkeys((0, 2), "the model's output is NaN or infinite; check the values")
        with pytest.raises(ft.InputError, match="the new data has x of dtype <U1; give numbers"):
            model.predict([["a", "b", "c"]])
        with pytest.raises(ft.InputError, match=r"the new data has x of shape \(\) and dtype"):
            model.predict(3)


def test_tokens_and_several_inputs_are_read_as_in_training(tmp_path: Path) -> None:
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(5, 2)

        def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([self.embedding(ids).mean(1), numbers], 1))

    rng = np.random.default_rng(0)
    x = {"ids": rng.integers(0, 5, (20, 4)), "numbers": rng.normal(size=(20, 2))}
    clients = [(x, np.arange(20) % 2)] * 2
    result = ft.run([ft.fedavg()], ft.Federation.from_clients(clients), Pair(), **SETTINGS)
    result.export(tmp_path / "pair.safetensors")
    model = ft.load(tmp_path / "pair.safetensors", model=Pair())
    inputs = {"ids": torch.tensor(x["ids"]), "numbers": torch.tensor(x["numbers"]).float()}
    expected = result["fedavg"].shared(**inputs).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(model.predict_proba(x), expected, rtol=1e-5)
    with pytest.raises(ft.InputError, match="the inputs have 3 and 20 samples; give as many of each"):
        model.predict(x | {"ids": x["ids"][:3]})
    with pytest.raises(ft.InputError, match=r"does not take these samples \(index out of range in self\)"):
        model.predict(x | {"ids": x["ids"] + 5})
