"""The command line as a user sees it: what it prints, what it writes, and its errors."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt.files import read_json, read_toml, write_json, write_toml

QUICK = ["--set", "train.rounds=3", "--set", "train.epochs=1", "--set", "clients.count=6", "--set", "train.workers=0"]


def test_run_prints_a_table_and_writes_the_run_folder(fedtilt, tmp_path: Path) -> None:
    result = fedtilt("run", *QUICK)
    assert result.code == 0, result.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run folder: runs/{folder.name}" in result.out
    results = json.loads((folder / "results.json").read_text())
    for name in ("fedavg", "ditto", "fedtilt"):
        row = next(line for line in result.out.splitlines() if line.strip().startswith(name))
        assert f"{results['methods'][name]['accuracy']['mean']:.2f}" in row
        assert f"{results['methods'][name]['client_fairness']['mean']:.2f}" in row
    assert "round 3/3" in result.err
    assert f"report:     runs/{folder.name}/report.html" in result.out
    assert "fedtilt" in (folder / "report.html").read_text()
    environment = json.loads((folder / "run.json").read_text())["environment"]
    assert {"torch", "device", "threads", "python", "numpy", "fedtilt"} <= set(environment)
    lines = [json.loads(line) for line in (folder / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    expected = [(round, name) for round in (1, 2, 3) for name in ("fedavg", "ditto", "fedtilt")]
    assert [(entry["round"], entry["method"]) for entry in lines] == expected
    counts = load_file(folder / "seed-0" / "counts" / "round-00003.safetensors")
    assert counts["total"].shape == (6, 10)
    assert "rounds = 3" in (folder / "spec.toml").read_text()


def test_run_reads_and_prepares_the_data_of_a_seed_once(fedtilt, monkeypatch: pytest.MonkeyPatch) -> None:
    read, prepared = [], []
    from fedtilt.runs import spec_run
    from fedtilt.spec import build

    dataset_of, prepare = build.dataset_of, spec_run.prepare
    monkeypatch.setattr(build, "dataset_of", lambda spec, seed: read.append(seed) or dataset_of(spec, seed))
    monkeypatch.setattr(spec_run, "prepare", lambda *inputs: prepared.append(1) or prepare(*inputs))
    assert fedtilt("run", *QUICK, "--seeds", "2").code == 0
    assert (read, len(prepared)) == ([0, 1], 2)


def test_json_seeds_and_methods(fedtilt) -> None:
    result = fedtilt("run", *QUICK, "--json", "--seeds", "2", "--seed", "4", "--method", "ditto", "--method", "fedprox")
    table = json.loads(result.out)
    assert result.err == ""
    assert table["seeds"] == [4, 5]
    assert list(table["methods"]) == ["ditto", "fedprox"]
    values = table["methods"]["ditto"]["accuracy"]
    assert values["mean"] == pytest.approx(sum(values["seeds"]) / 2)
    assert values["std"] == pytest.approx(abs(values["seeds"][0] - values["seeds"][1]) / 2**0.5)
    assert Path(table["folder"], "seed-5", "metrics.jsonl").exists()
    resumed = fedtilt("resume", table["folder"])
    assert "is finished; these are its results" in resumed.err
    assert f"{values['mean']:.2f} ± {values['std']:.2f}" in resumed.out
    assert re.search(r"\d, seed [45]: \d+ % \(\d+ to \d+\)", resumed.out)  # the client that fails most in all seeds


def test_quiet_prints_only_the_run_folder(fedtilt) -> None:
    result = fedtilt("run", *QUICK, "--quiet", "--out", "run")
    assert result.out == "run folder: run\n"
    assert result.err == ""


def test_a_run_equals_the_python_call(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run", "--method", "ditto")
    federation = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=60, outliers="flips", seed=0)
    result = ft.run(
        [ft.ditto(1.0, lr_personal=0.002)], federation,
        lambda input_shape, classes: ft.models.mlp(input_shape, classes, (64, 64)),
        rounds=3, epochs=1, participation=0.25, lr=0.1, workers=0,
    )  # fmt: skip
    table = json.loads(Path("run/results.json").read_text())
    assert table["methods"]["ditto"]["accuracy"]["mean"] == result["ditto"].accuracy


def test_an_exported_model_loads(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run")
    result = fedtilt("export", "run", "--method", "ditto", "--to", "w.safetensors")
    lines = ["wrote the shared model of ditto after round 3 (8,970 parameters) to w.safetensors", "model card: w.md"]
    assert result.out.splitlines() == lines
    model = ft.models.mlp((1, 8, 8), 10, hidden=(64, 64))
    model.load_state_dict(load_file("w.safetensors"))
    run = ft.resume("run")[0]
    for a, b in zip(model.parameters(), run["ditto"].shared.parameters(), strict=True):
        assert a.equal(b)
    ever_selected = next(n for n in range(6) if not run["ditto"].summary.never_selected or _has_personal(run, n))
    assert (
        fedtilt("export", "run", "--method", "ditto", "--client", str(ever_selected), "--to", "v.safetensors").code == 0
    )
    model.load_state_dict(load_file("v.safetensors"))
    personal = run["ditto"].personal(ever_selected)
    assert all(a.equal(b) for a, b in zip(model.parameters(), personal.parameters(), strict=True))


def _has_personal(result: ft.Result, client: int) -> bool:
    shared, personal = result["ditto"].shared, result["ditto"].personal(client)
    return any(not a.equal(b) for a, b in zip(shared.parameters(), personal.parameters(), strict=True))


SITES = (
    '[data]\nfile = "table.csv"\ntarget = "well"\nclient = "site"\n[clients]\npartition = "column"\n'
    "[model]\nhidden = [8]\n[train]\nrounds = 3\nparticipation = 1.0\nepochs = 2\nlr = 0.1\nworkers = 0\n"
    '[[methods]]\npreset = "ditto"\n'
)


def _write_sites() -> None:
    """Features far from mean 0 and deviation 1, so that a model fails without standardised features."""
    rows = ["age,dose,same,well,site"]
    for i in range(160):
        well = i % 7 > 3
        rows.append(f"{60 + 9 * well + i % 5},{1e-4 * (i % 11 - 4 * well)},7,{'yes' if well else 'no'},{'AB'[i % 2]}")
    Path("table.csv").write_text("\n".join(rows))
    Path("mine.toml").write_text(SITES)


def test_an_exported_model_predicts_on_rows_of_a_table(fedtilt) -> None:
    """As in the README: with ft.data.transform, and in plain torch with the metadata of the file."""
    _write_sites()
    assert fedtilt("run", "mine.toml", "--quiet", "--out", "run").code == 0
    exported = fedtilt("export", "run", "--method", "ditto", "--client", "B", "--to", "b.safetensors")
    assert exported.code == 0, exported.err
    with safe_open("b.safetensors", "pt") as file:
        metadata = file.metadata()
    assert (metadata["method"], metadata["client"]) == ("ditto", "B")
    parsed = {key: json.loads(metadata[key]) for key in ("model", "classes", "schema")}
    assert parsed["model"] == {"name": "mlp", "input_shape": [3], "classes": 2, "hidden": [8]}
    assert parsed["classes"] == ["no", "yes"]
    columns = parsed["schema"]["columns"]
    assert list(columns) == ["age", "dose", "same"]

    model = ft.models.load("b.safetensors")
    assert not model.training
    parts = load_file("b.safetensors")
    assert all(torch.equal(value, parts[name]) for name, value in model.state_dict().items())
    with open("table.csv") as file:
        table = list(csv.DictReader(file))
    x = torch.tensor([[float(row[name]) for name in columns] for row in table], dtype=torch.float64)
    mean, deviation = (torch.tensor([c[key] for c in columns.values()], dtype=x.dtype) for key in ("mean", "deviation"))
    plain = model(((x - mean) / torch.where(deviation == 0, torch.inf, deviation)).float())
    assert torch.equal(plain, model(ft.data.transform("table.csv", like="b.safetensors")))

    trained = ft.resume("run")[0]["ditto"]
    data = ft.data.table("table.csv", target="well", client="site")
    assert torch.equal(trained.personal("B")(data.x_test), model(data.x_test))
    of_client_b = data.client_test == 1
    correct = [parsed["classes"][plain[n].argmax()] == table[n]["well"] for n in data.rows_test[of_client_b].tolist()]
    accuracy = trained.sums[1].sum() / trained.total[1].sum()
    assert accuracy >= 0.9
    assert sum(correct) / len(correct) == pytest.approx(accuracy.item())


def test_a_run_without_model_json_exports_and_resume_writes_it(fedtilt) -> None:
    _write_sites()
    fedtilt("run", "mine.toml", "--quiet", "--out", "run")
    Path("run/seed-0/model.json").unlink()
    arguments = ["export", "run", "--method", "ditto", "--to", "w.safetensors", "--force"]
    assert fedtilt(*arguments).code == 0
    with pytest.raises(ft.InputError, match="has no schema in its metadata; give a file that fedtilt export wrote"):
        ft.data.transform("table.csv", like="w.safetensors")
    with pytest.raises(ft.InputError, match="does not say how to build its model"):
        ft.models.load("w.safetensors")
    fedtilt("resume", "run", "--quiet")
    fedtilt(*arguments)
    assert ft.data.transform("table.csv", like="w.safetensors").shape == (160, 3)
    Path("run/seed-0/federation.json").unlink()
    assert fedtilt(*arguments).code == 0


def test_the_metadata_of_an_image_model_has_the_scale_of_pixels(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run", "--quiet")
    fedtilt("export", "run", "--method", "fedavg", "--to", "w.safetensors")
    with safe_open("w.safetensors", "pt") as file:
        metadata = file.metadata()
    mean, deviation = (torch.tensor(json.loads(metadata[key])) for key in ("mean", "deviation"))
    data = ft.data.load("digits")
    federation = ft.Federation.build(data, clients=6)
    x = data.x_test[:5].float() / (255 if data.x_test.dtype == torch.uint8 else 1)
    assert torch.equal((x - mean) / deviation, federation.model_input(data.x_test[:5]))
    assert json.loads(metadata["model"]) == {"name": "mlp", "input_shape": [1, 8, 8], "classes": 10, "hidden": [64, 64]}


def test_init_writes_a_spec_that_runs(fedtilt) -> None:
    assert fedtilt("init", "mine.toml").code == 0
    assert fedtilt("run", "mine.toml", *QUICK, "--quiet", "--out", "run").code == 0


def test_data_show_draws_the_federation(fedtilt) -> None:
    result = fedtilt("data", "show", "digits", "--set", "clients.count=5")
    assert result.code == 0
    assert "5 clients, 10 classes" in result.out


def test_version(fedtilt) -> None:
    assert fedtilt("--version").out == f"fedtilt {ft.__version__}\n"


INVALID = [
    (["run", "nosuch"], "nosuch"),
    (["run", "--set", "train.rond=5"], "train.rounds"),
    (["run", "--set", "train.rounds=0"], "train.rounds"),
    (["run", "--set", "data.name=imagenet"], "imagenet"),
    (["run", "mnist", "--data-dir", "nowhere"], "fedtilt data download mnist"),
    (["run", "--device", "cuda:9"], "use device 'cpu'"),
    (["run", "--method", "fedbest"], "fedbest"),
    (["run", "--set", "clients.count=5000"], "5000"),
    (["run", "--set", "clients.partition=dirichlet", "--set", "clients.alpha=0.001"], "client"),
    (["run", "--set", "methods.fedavg.lr=1e30", "--method", "fedavg"], "diverged in round 1 on client"),
    (["run", "--set", "methods.ditto.mu=-1"], "mu"),
    (["run", "--out", "/dev/null/x"], "/dev/null/x"),
    (["run", "--out", "full"], "full is not empty"),
    (["resume", "nosuch"], "nosuch does not exist; check the path"),
    (["resume", "full"], "full is not a run folder: it has no run.json"),
    (["resume", "x" * 300], "xxx cannot be used: File name too long; check the path, its permissions and the disk"),
    (["export", "nosuch", "--method", "ditto", "--to", "x.safetensors"], "nosuch does not exist; check the path"),
    (["export", "run", "--method", "ditto", "--to", "y.pt"], "--to y.pt ends neither in .safetensors nor in .onnx"),
    (["data", "download", "nosuch"], "nosuch"),
    (["run", "--bogus"], "no such option: --bogus; see fedtilt run --help"),
    (["run", "--rounds", "3"], "no such option: --rounds; did you mean --set train.rounds=…? See fedtilt run --help"),
    (["run", "--batch-size", "3"], "no such option: --batch-size; did you mean --set train.batch_size=…?"),
    (["report", "run", "--too", "x"], "no such option: --too; see fedtilt report --help"),
    (["run", "--sed", "3"], "no such option: --sed; did you mean --seed or --seeds or --set? See fedtilt run --help"),
    (["run", "--seeds", "x"], "'x' is not a valid integer; see fedtilt run --help"),
    (["run", "toy", "--set", "model.hidden=[7]"], "model.hidden = [7] has no effect here; set model.name = 'mlp'"),
    (["run", "toy", "--set", "clients.count=5"], "clients = 5 differs from the 2 clients that 'toy-1' has of its own"),
    (["run", "digits", "toy"], "unexpected extra argument (toy)"),
    (["runn"], "no such command 'runn'; did you mean 'run'? See fedtilt --help"),
    (["export", "run", "--method", "ditto"], "missing option '--to'"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID, ids=[" ".join(a) for a, _ in INVALID])
def test_bad_input_prints_one_line_and_writes_nothing(fedtilt, arguments: list[str], message: str) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("")
    result = fedtilt(*arguments)
    assert result.code == 2, result.err
    (line,) = result.err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert result.out == ""
    if "diverged" not in message:
        assert not Path("runs").exists()


def test_export_refuses_a_model_that_is_not_in_the_run(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run", "--quiet")
    for extra, message in (
        (["--method", "term"], "has no method 'term'; it has"),
        (["--method", "fedavg", "--client", "1"], "client 1 has no personal model of method 'fedavg'"),
        (["--method", "ditto", "--client", "99"], "client 99 does not exist; the clients are 0 to 5"),
        (["--method", "ditto", "--seed", "3"], "has no seed 3; it has 0"),
    ):
        result = fedtilt("export", "run", "--to", "x.safetensors", *extra)
        assert result.code == 2
        assert message in result.err
    assert not Path("x.safetensors").exists()
    assert "is not empty; use fedtilt resume run" in fedtilt("run", *QUICK, "--out", "run").err


def test_a_run_from_python_is_resumed_only_in_python(fedtilt, tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20)
    ft.run([ft.fedavg()], federation, ft.models.logistic, rounds=1, epochs=1, workers=0, out="run")
    result = fedtilt("resume", "run")
    assert result.code == 2
    assert result.err == (
        "error: run was started from Python: call fedtilt.run again with the same arguments and out=\n"
    )


def test_a_flower_run_is_not_resumed_by_the_simulator(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run", "--quiet")
    for name in ("run.json", "seed-0/fingerprint.json"):
        path = Path("run", name)
        write_json(path, read_json(path) | {"runner": "flower"})
    result = fedtilt("resume", "run")
    assert result.code == 2
    assert "resume it with fedtilt deploy run" in result.err
    assert fedtilt("report", "run", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "fedtilt deploy run PROJECT" in page
    assert "fedtilt run run/spec.toml" not in page


def test_a_changed_spec_is_refused_on_resume(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run", "--quiet")
    spec = Path("run/spec.toml")
    spec.write_text(spec.read_text().replace("\nlr = 0.1\n", "\nlr = 0.3\n", 1))
    result = fedtilt("resume", "run")
    assert result.code == 2
    assert "spec.toml was damaged or changed after it was written" in result.err
    assert "delete its last line to use it as it is" in result.err
    spec.write_text("".join(spec.read_text().splitlines(keepends=True)[:-1]))
    result = fedtilt("resume", "run")
    assert result.code == 2
    assert "was started with train.lr = 0.1, and now it is 0.3" in result.err


def test_ctrl_c_leaves_a_run_that_resume_finishes(fedtilt, tmp_path: Path) -> None:
    """A real process, interrupted as by a terminal: the signal goes to the whole group, workers included."""
    settings = [
        "--set", "train.rounds=6", "--set", "train.epochs=1", "--set", "train.workers=2", "--set", "clients.count=4",
        "--method", "ditto",
    ]  # fmt: skip
    command = [sys.executable, "-c", "from fedtilt.cli import main; main()", "run", "--verbose", *settings]
    process = subprocess.Popen(
        [*command, "--out", "cut"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip  # a background job of a shell ignores it
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 2/"):
            os.killpg(process.pid, signal.SIGINT)
            break
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping after this round; Ctrl-C again stops at once" in err
    assert err.strip().endswith("stopped; resume with: fedtilt resume cut")
    (checkpoint,) = (tmp_path / "cut/seed-0/checkpoints").iterdir()  # written because of Ctrl-C
    assert 2 <= int(checkpoint.name.removeprefix("round-")) < 6
    assert "Traceback" not in err
    assert not (tmp_path / "cut" / "results.json").exists()
    for arguments in (["resume", "cut"], ["run", *settings, "--out", "whole"]):
        assert fedtilt(*arguments, "--quiet").code == 0
    assert (tmp_path / "cut" / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()


def test_numbers_are_complete_on_a_narrow_terminal(fedtilt, monkeypatch: pytest.MonkeyPatch) -> None:
    fedtilt("run", *QUICK, "--seeds", "2", "--out", "runs/a")
    table = json.loads(Path("runs/a/results.json").read_text())
    for width in (60, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = fedtilt("resume", "runs/a").out.splitlines()
        assert not any("…" in line for line in lines)
        assert max(len(line) for line in lines if "run" not in line and "report" not in line) <= width
        for name, values in table["methods"].items():
            row = next(line for line in lines if line.strip().startswith(name))
            assert f"{values['accuracy']['mean']:.2f} ± {values['accuracy']['std']:.2f}" in row


def test_names_are_not_interpreted_as_markup(fedtilt) -> None:
    """A table with names that look like markup, from the file to the export."""
    rows = ["a,b,label,site"]
    for i in range(360):  # the classes of [b] are the other way round: the model of both fails it
        is_x, site = (i % 7) > 3, "St. Mary [/]" if i % 4 else "[b]"
        rows.append(f"{i % 7},{(i * 5) % 11},{'x[red]' if is_x == (site != '[b]') else 'y'},{site}")
    Path("table.csv").write_text("\n".join(rows))
    Path("mine.toml").write_text(
        '[data]\nfile = "table.csv"\ntarget = "label"\nclient = "site"\n[clients]\npartition = "column"\n'
        '[model]\nname = "logistic"\n[train]\nrounds = 5\nparticipation = 1.0\nepochs = 5\nworkers = 0\n'
        '[[methods]]\npreset = "ditto"\nname = "ditto [x]"\n[[methods]]\npreset = "fedavg"\n'
    )
    result = fedtilt("run", "mine.toml", "--out", "a[red]b")
    assert result.code == 0, result.err
    assert "run folder: a[red]b" in result.out
    assert "ditto [x]" in result.out
    assert re.search(r"\[b\]: \d+ % \(\d+ to \d+\)", result.out)
    exported = fedtilt("export", "a[red]b", "--method", "ditto [x]", "--client", "0", "--to", "m.safetensors")
    assert exported.out.splitlines()[0].endswith("to m.safetensors")


def test_clients_with_few_or_no_test_rows_are_listed(fedtilt) -> None:
    _write_sites()
    lines = Path("table.csv").read_text().splitlines()
    wrong = [line.replace(",yes,", ",no,") if ",yes," in line else line.replace(",no,", ",yes,") for line in lines[1:9]]
    small = [line[:-1] + "small" for line in wrong]  # the shared model fails its two test rows
    single_rows = [lines[1][:-1] + name for name in ("lone", "[b]")]
    Path("table.csv").write_text("\n".join([*lines, *small, *single_rows]))
    settings = ["--method", "fedavg", "--set", "train.rounds=5"]
    result = fedtilt("run", "mine.toml", *settings)
    assert result.code == 0, result.err
    row = next(line for line in result.out.splitlines() if line.strip().startswith("fedavg"))
    assert "small" not in row  # 0 of 2 is chance
    assert "not evaluated         Clients without test data: [b]; lone." in result.out
    again = fedtilt("run", "mine.toml", *settings, "--seeds", "3")
    joined = " ".join(again.out.split())
    assert (
        "Clients without test data: [b], seed 0; lone, seed 0; [b], seed 1; lone, seed 1; [b], seed 2 and 1 more"
        in joined
    )
    Path("table.csv").write_text("\n".join([*lines, *small, single_rows[0]]))
    assert "Clients without test data: lone" in fedtilt("run", "mine.toml", *settings).out
    _write_sites()
    complete = fedtilt("run", "mine.toml", *settings).out
    assert "not evaluated" not in complete
    assert " of " not in next(line for line in complete.splitlines() if line.strip().startswith("fedavg"))


def test_damaged_and_changed_files_are_reported(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "run", "--quiet", "--set", "storage.checkpoint_seconds=0")
    shared = Path("run/seed-0/checkpoints/round-00003/server.safetensors")
    shared.write_bytes(shared.read_bytes() + b"x")
    export = ["export", "run", "--method", "ditto", "--to", "m.safetensors"]
    result = fedtilt(*export)
    assert result.code == 2
    assert "error: the checkpoint of round 3 is damaged" in result.err
    assert "resume the run, which goes back to the one before" in result.err
    assert "after round 2 (" in fedtilt(*export, "--round", "2").out
    assert "note: the checkpoint of round 3 is damaged" in fedtilt("resume", "run", "--quiet").err
    spec = Path("run/spec.toml")
    write_toml(spec, read_toml(spec).replace("seeds = 1", "seeds = 2"))
    assert "was started with seeds [0], and its spec.toml now says [0, 1]" in fedtilt("resume", "run").err
    Path("file").write_text("")
    assert "file is a file; choose another folder" in fedtilt("run", "--out", "file").err
    assert (
        "cannot write file/x.safetensors"
        in fedtilt("export", "run", "--method", "ditto", "--to", "file/x.safetensors").err
    )


def test_output_that_cannot_be_written_is_one_line() -> None:
    command = [sys.executable, "-m", "fedtilt", "--version"]
    with open("/dev/full", "w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr == (
        "error: the output cannot be used: No space left on device; check the path, its permissions and the disk\n"
    )
