"""The command line as a person meets it: what it prints, where it leaves things, how it refuses."""

import csv
import json
import os
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
from fedtilt.report.run_reader import read_run
from fedtilt.runs import spec_run

QUICK = ["--set", "train.rounds=3", "--set", "train.epochs=1", "--set", "clients.count=6", "--set", "train.workers=0"]


def test_tune_says_what_to_take_and_so_does_resume(fedtilt, tmp_path: Path) -> None:
    said = fedtilt("tune", *QUICK, "--over", "lam=-2,1", "--out", "search")
    assert said.code == 0, said.err
    assert "clients.validation is 0: 10% of every client's training samples are set aside" in said.err
    results = json.loads((tmp_path / "search/results.json").read_text())["methods"]
    assert list(results) == ["fedavg", "ditto", "fedtilt", "fedtilt lam=1"]
    held = {name: results[name]["validation"]["accuracy"]["mean"] for name in ("fedtilt", "fedtilt lam=1")}
    best = max(held, key=lambda name: held[name])
    settings = " ".join(f"--set {text}" for text in QUICK[1::2])
    lam = {"fedtilt": -2, "fedtilt lam=1": 1}[best]
    assert f"it:  fedtilt run digits {settings} --set methods.fedtilt.lam={lam}" in said.out
    on_validation, on_test = said.out.split("On test data")
    assert f"{held[best]:.2f}" in on_validation
    assert f"{results[best]['accuracy']['mean']:.2f}" in on_test
    again = fedtilt("resume", "search")
    assert again.out.split("\n")[2:] == said.out.split("\n")[2:]  # all but the seconds it took
    page = (tmp_path / "search/report.html").read_text()
    assert f"A search among 2 settings of fedtilt, of which {best} was chosen on validation data" in page
    assert read_run(tmp_path / "search").methods == ("fedavg", "ditto", *dict.fromkeys(["fedtilt", best]))
    assert "samples decided; about" in on_validation
    verdict = json.loads(fedtilt("resume", "search", "--json").out)["tuning"]
    assert (verdict["method"], verdict["chosen"]) == ("fedtilt", best)


def test_tune_goes_on_without_a_setting_that_diverges(fedtilt, tmp_path: Path) -> None:
    long = ["train.rounds=2", "train.epochs=3", "train.lr=0.6", "outliers.kind=gaussian"]
    overrides = [part for text in long for part in ("--set", text)]
    said = fedtilt("tune", *QUICK, *overrides, "--over", "tau=0", "--over", "lam=-2,10", "--out", "search")
    assert said.code == 0, said.err
    assert "method 'fedtilt tau=0 lam=10' diverged in round 2 on client" in said.err
    assert "starting again without it" in said.err
    results = json.loads((tmp_path / "search/results.json").read_text())
    assert list(results["methods"]) == ["fedavg", "ditto", "fedtilt"]
    assert results["tuning"]["diverged"] == ["fedtilt tau=0 lam=10"]
    assert "methods.fedtilt.lam=-2" in said.out
    assert "1 diverged and had to be left out: fedtilt tau=0 lam=10" in said.out


def test_an_interrupted_search_goes_on_without_what_diverges(fedtilt, monkeypatch, tmp_path: Path) -> None:
    real = spec_run.run_spec
    stopped: list[int] = []

    def interrupted(*arguments, on_round, **rest):
        def stop(r, summaries) -> None:
            on_round(r, summaries)
            if r.number == 1 and not stopped:
                stopped.append(1)
                raise KeyboardInterrupt

        return real(*arguments, on_round=stop, **rest)

    monkeypatch.setattr("fedtilt.runs.tune.run_spec", interrupted)
    long = ["train.rounds=2", "train.epochs=3", "train.lr=0.6", "outliers.kind=gaussian"]
    overrides = [part for text in long for part in ("--set", text)]
    said = fedtilt("tune", *QUICK, *overrides, "--over", "tau=0", "--over", "lam=-2,10", "--out", "my search")
    assert said.code == 130
    assert "go on with: fedtilt resume 'my search'" in said.err
    (tmp_path / "my search/notes.txt").write_text("mine")
    said = fedtilt("resume", "my search")
    assert said.code == 0, said.err
    assert (tmp_path / "my search/notes.txt").read_text() == "mine"
    assert "starting again without it" in said.err
    assert "1 diverged and had to be left out" in said.out


def test_run_prints_a_table_and_the_folder_and_writes_it(fedtilt, tmp_path: Path) -> None:
    said = fedtilt("run", *QUICK)
    assert said.code == 0, said.err
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run folder: runs/{folder.name}" in said.out
    results = json.loads((folder / "results.json").read_text())
    for name in ("fedavg", "ditto", "fedtilt"):
        row = next(line for line in said.out.splitlines() if line.strip().startswith(name))
        assert f"{results['methods'][name]['accuracy']['mean']:.2f}" in row
        assert f"{results['methods'][name]['client_fairness']['mean']:.2f}" in row
    assert "round 3/3" in said.err
    assert f"report:     runs/{folder.name}/report.html" in said.out
    assert "fedtilt" in (folder / "report.html").read_text()
    environment = json.loads((folder / "run.json").read_text())["environment"]
    assert {"torch", "device", "threads", "python", "numpy", "fedtilt"} <= set(environment)
    lines = [json.loads(line) for line in (folder / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    expected = [(round, name) for round in (1, 2, 3) for name in ("fedavg", "ditto", "fedtilt")]
    assert [(entry["round"], entry["method"]) for entry in lines] == expected
    counts = load_file(folder / "seed-0" / "counts" / "round-00003.safetensors")
    assert counts["total"].shape == (6, 10)
    assert "rounds = 3" in (folder / "spec.toml").read_text()


def test_json_seeds_and_methods(fedtilt) -> None:
    said = fedtilt("run", *QUICK, "--json", "--seeds", "2", "--seed", "4", "--method", "ditto", "--method", "fedprox")
    table = json.loads(said.out)
    assert said.err == ""
    assert table["seeds"] == [4, 5]
    assert list(table["methods"]) == ["ditto", "fedprox"]
    values = table["methods"]["ditto"]["accuracy"]
    assert values["mean"] == pytest.approx(sum(values["seeds"]) / 2)
    assert values["std"] == pytest.approx(abs(values["seeds"][0] - values["seeds"][1]) / 2**0.5)
    assert Path(table["folder"], "seed-5", "metrics.jsonl").exists()
    shown = fedtilt("resume", table["folder"])
    assert "is finished; this is what it found" in shown.err
    assert f"{values['mean']:.2f} ± {values['std']:.2f}" in shown.out
    lowest = []
    for seed in (4, 5):  # who fails is looked for under all seeds
        counts = load_file(Path(table["folder"], f"seed-{seed}", "counts", "round-00003.safetensors"))
        share = counts["ditto/personal"].sum(1) / counts["total"].sum(1)
        lowest.append((round(100 * share.min().item()), f"{share.argmin()}, seed {seed}: {100 * share.min():.0f} %"))
    assert min(lowest)[1] in shown.out


def test_quiet_prints_the_folder_alone(fedtilt) -> None:
    said = fedtilt("run", *QUICK, "--quiet", "--out", "here")
    assert said.out == "run folder: here\n"
    assert said.err == ""


def test_a_run_equals_the_python_call(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here", "--method", "ditto")
    federation = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=60, outliers="flips", seed=0)
    result = ft.run(
        [ft.ditto(0.01)], federation, lambda input_shape, classes: ft.models.mlp(input_shape, classes, (64, 64)),
        rounds=3, epochs=1, participation=0.25, lr=0.1, workers=0,
    )  # fmt: skip
    table = json.loads(Path("here/results.json").read_text())
    assert table["methods"]["ditto"]["accuracy"]["mean"] == result["ditto"].accuracy


def test_export_loads_in_three_lines(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here")
    said = fedtilt("export", "here", "--method", "ditto", "--to", "w.safetensors")
    assert said.out == "wrote the shared model of ditto (8,970 parameters) to w.safetensors\n"
    model = ft.models.mlp((1, 8, 8), 10, hidden=(64, 64))
    model.load_state_dict(load_file("w.safetensors"))
    result = ft.resume("here")[0]
    for a, b in zip(model.parameters(), result["ditto"].shared.parameters(), strict=True):
        assert a.equal(b)
    ever_selected = next(n for n in range(6) if not result["ditto"].summary.never_selected or _has(result, n))
    assert (
        fedtilt("export", "here", "--method", "ditto", "--client", str(ever_selected), "--to", "v.safetensors").code
        == 0
    )
    model.load_state_dict(load_file("v.safetensors"))
    own = result["ditto"].personal(ever_selected)
    assert all(a.equal(b) for a, b in zip(model.parameters(), own.parameters(), strict=True))


def _has(result: ft.Result, client: int) -> bool:
    shared, own = result["ditto"].shared, result["ditto"].personal(client)
    return any(not a.equal(b) for a, b in zip(shared.parameters(), own.parameters(), strict=True))


SITES = (
    '[data]\nfile = "table.csv"\ntarget = "well"\nclient = "site"\n[clients]\npartition = "column"\n'
    "[model]\nhidden = [8]\n[train]\nrounds = 3\nparticipation = 1.0\nepochs = 2\nlr = 0.1\nworkers = 0\n"
    '[[methods]]\npreset = "ditto"\n'
)


def _write_sites() -> None:
    """Far from mean 0 and deviation 1, so that a model that is not given standardised features is lost."""
    rows = ["age,dose,same,well,site"]
    for i in range(160):
        well = i % 7 > 3
        rows.append(f"{60 + 9 * well + i % 5},{1e-4 * (i % 11 - 4 * well)},7,{'yes' if well else 'no'},{'AB'[i % 2]}")
    Path("table.csv").write_text("\n".join(rows))
    Path("mine.toml").write_text(SITES)


def test_an_exported_model_predicts_on_rows_of_a_table(fedtilt) -> None:
    """As the README has it: with ft.data.rows, and in plain torch from what the file says about itself."""
    _write_sites()
    assert fedtilt("run", "mine.toml", "--quiet", "--out", "here").code == 0
    exported = fedtilt("export", "here", "--method", "ditto", "--client", "B", "--to", "b.safetensors")
    assert exported.code == 0, exported.err
    with safe_open("b.safetensors", "pt") as file:
        said = file.metadata()
    assert (said["method"], said["client"]) == ("ditto", "B")
    about = {key: json.loads(said[key]) for key in ("model", "classes", "features", "mean", "deviation")}
    assert about["model"] == {"name": "mlp", "input_shape": [3], "classes": 2, "hidden": [8]}
    assert about["classes"] == ["no", "yes"]
    assert about["features"] == ["age", "dose", "same"]

    model = ft.models.load("b.safetensors")
    assert not model.training
    parts = load_file("b.safetensors")
    assert all(torch.equal(value, parts[name]) for name, value in model.state_dict().items())
    with open("table.csv") as file:
        table = list(csv.DictReader(file))
    x = torch.tensor([[float(row[name]) for name in about["features"]] for row in table], dtype=torch.float64)
    mean, deviation = (torch.tensor([float(v) for v in about[key]], dtype=x.dtype) for key in ("mean", "deviation"))
    plain = model(((x - mean) / deviation).float())
    assert torch.equal(plain, model(ft.data.rows("table.csv", like="b.safetensors")))

    own = ft.resume("here")[0]["ditto"]
    data = ft.data.table("table.csv", target="well", client="site")
    assert torch.equal(own.personal("B")(data.x_test), model(data.x_test))
    mine = data.client_test == 1
    test_rows = [[round(v, 3) for v in row] for row in data.x_test[mine].tolist()]
    every = [[round(v, 3) for v in row] for row in ft.data.rows("table.csv", like=data).tolist()]
    right = [
        about["classes"][plain[n].argmax()] == row["well"]
        for n, row in enumerate(table)
        if row["site"] == "B" and every[n] in test_rows
    ]
    accuracy = own.correct[1].sum() / own.total[1].sum()
    assert accuracy > 0.9
    assert sum(right) / len(right) == pytest.approx(accuracy.item())


def test_a_run_of_before_still_exports_and_learns_what_it_lacks_from_resume(fedtilt) -> None:
    _write_sites()
    fedtilt("run", "mine.toml", "--quiet", "--out", "here")
    Path("here/seed-0/model.json").unlink()
    arguments = ["export", "here", "--method", "ditto", "--to", "w.safetensors", "--force"]
    assert fedtilt(*arguments).code == 0
    with pytest.raises(ft.InputError, match="does not say what its features are; give a file of fedtilt export"):
        ft.data.rows("table.csv", like="w.safetensors")
    with pytest.raises(ft.InputError, match="does not say how its model is made"):
        ft.models.load("w.safetensors")
    fedtilt("resume", "here", "--quiet")
    fedtilt(*arguments)
    assert ft.data.rows("table.csv", like="w.safetensors").shape == (160, 3)
    Path("here/seed-0/federation.json").unlink()
    assert fedtilt(*arguments).code == 0


def test_an_exported_image_model_says_how_pixels_are_scaled(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here", "--quiet")
    fedtilt("export", "here", "--method", "fedavg", "--to", "w.safetensors")
    with safe_open("w.safetensors", "pt") as file:
        said = file.metadata()
    mean, deviation = (torch.tensor(json.loads(said[key])) for key in ("mean", "deviation"))
    data = ft.data.load("digits")
    federation = ft.Federation.build(data, clients=6)
    x = data.x_test[:5].float() / (255 if data.x_test.dtype == torch.uint8 else 1)
    assert torch.equal((x - mean) / deviation, federation.model_ready(data.x_test[:5]))
    assert json.loads(said["model"]) == {"name": "mlp", "input_shape": [1, 8, 8], "classes": 10, "hidden": [64, 64]}


def test_init_writes_a_spec_that_runs(fedtilt) -> None:
    assert fedtilt("init", "mine.toml").code == 0
    assert fedtilt("run", "mine.toml", *QUICK, "--quiet", "--out", "here").code == 0


def test_show_draws_the_federation(fedtilt) -> None:
    said = fedtilt("data", "show", "digits", "--set", "clients.count=5")
    assert said.code == 0
    assert "5 clients, 10 classes" in said.out


def test_version(fedtilt) -> None:
    assert fedtilt("--version").out == f"fedtilt {ft.__version__}\n"


REFUSED = [
    (["run", "nosuch"], "nosuch"),
    (["run", "--set", "train.rond=5"], "train.rounds"),
    (["run", "--set", "train.rounds=0"], "train.rounds"),
    (["run", "--set", "data.name=imagenet"], "imagenet"),
    (["run", "mnist", "--data-dir", "nowhere"], "fedtilt data get mnist"),
    (["run", "--device", "cuda:9"], "use device 'cpu'"),
    (["run", "--method", "fedbest"], "fedbest"),
    (["run", "--set", "clients.count=5000"], "5000"),
    (["run", "--set", "clients.partition=dirichlet", "--set", "clients.alpha=0.001"], "client"),
    (["run", "--set", "train.lr=1e30", "--method", "fedavg"], "diverged in round 1 on client"),
    (["run", "--set", "methods.ditto.mu=-1"], "mu"),
    (["run", "--out", "/dev/null/x"], "/dev/null/x"),
    (["run", "--out", "full"], "full is not empty"),
    (["resume", "nosuch"], "nosuch does not exist; check the path"),
    (["resume", "full"], "full is not a run folder: it has no run.json"),
    (["export", "nosuch", "--method", "ditto", "--to", "x"], "nosuch does not exist; check the path"),
    (["data", "get", "nosuch"], "nosuch"),
    (["run", "--bogus"], "no such option: --bogus"),
    (["run", "--seeds", "x"], "'x' is not a valid integer; see fedtilt run --help"),
    (["run", "digits", "toy"], "unexpected extra argument (toy)"),
    (["runn"], "Did you mean 'run'; see fedtilt --help"),
    (["export", "here", "--method", "ditto"], "missing option '--to'"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(fedtilt, arguments: list[str], words: str) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("")
    said = fedtilt(*arguments)
    assert said.code == 2, said.err
    (line,) = said.err.strip().splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert said.out == ""
    if "diverged" not in words:
        assert not Path("runs").exists()


def test_a_run_that_lacks_what_is_exported_is_refused(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here", "--quiet")
    for extra, words in (
        (["--method", "term"], "has no method 'term'; it has"),
        (["--method", "fedavg", "--client", "1"], "client 1 has no personal model of method 'fedavg'"),
        (["--method", "ditto", "--client", "99"], "client 99 does not exist; the clients are 0 to 5"),
        (["--method", "ditto", "--seed", "3"], "has no seed 3; it has 0"),
    ):
        said = fedtilt("export", "here", "--to", "x.safetensors", *extra)
        assert said.code == 2
        assert words in said.err
    assert not Path("x.safetensors").exists()
    assert "is not empty; use fedtilt resume here" in fedtilt("run", *QUICK, "--out", "here").err


def test_a_run_from_python_is_not_resumed_here_but_there(fedtilt, tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=20)
    ft.run([ft.fedavg()], federation, ft.models.logistic, rounds=1, epochs=1, workers=0, out="here")
    said = fedtilt("resume", "here")
    assert said.code == 2
    assert said.err == (
        "error: here was started from Python: call fedtilt.run again with the same arguments and out=\n"
    )


def test_a_run_on_real_sites_is_not_gone_on_with_here(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here", "--quiet")
    for name in ("run.json", "seed-0/fingerprint.json"):
        path = Path("here", name)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"runner": "flower"}))
    said = fedtilt("resume", "here")
    assert said.code == 2
    assert "go on with fedtilt deploy run" in said.err
    assert fedtilt("report", "here", "--out", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "fedtilt deploy run PROJECT" in page
    assert "fedtilt run here/spec.toml" not in page


def test_a_changed_spec_is_refused_on_resume(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here", "--quiet")
    spec = Path("here/spec.toml")
    spec.write_text(spec.read_text().replace("lr = 0.1", "lr = 0.3"))
    said = fedtilt("resume", "here")
    assert said.code == 2
    assert "was begun with train.lr = 0.1, and now it is 0.3" in said.err


def test_ctrl_c_leaves_a_run_that_resume_finishes(tmp_path: Path) -> None:
    """A real process, interrupted as a terminal would: the signal goes to the whole group, workers included."""
    settings = [
        "--set", "train.rounds=60", "--set", "train.epochs=2", "--set", "train.workers=2", "--method", "ditto",
    ]  # fmt: skip
    command = [sys.executable, "-c", "from fedtilt.cli import main; main()", "run", "--verbose", *settings]
    process = subprocess.Popen(
        [*command, "--out", "cut"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip  # in the background a shell may have told us to ignore it
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 5/"):
            os.killpg(process.pid, signal.SIGINT)
            break
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping after this round; Ctrl-C again stops at once" in err
    assert err.strip().endswith("stopped; go on with: fedtilt resume cut")
    (kept,) = (tmp_path / "cut/seed-0/checkpoints").iterdir()  # written because of Ctrl-C, not for the time it took
    assert 5 <= int(kept.name.removeprefix("round-")) < 60
    assert "Traceback" not in err
    assert not (tmp_path / "cut" / "results.json").exists()
    for arguments in (["resume", "cut"], ["run", *settings, "--out", "whole"]):
        subprocess.run([*command[:3], *arguments, "--quiet"], cwd=tmp_path, check=True)
    assert (tmp_path / "cut" / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_number_is_cut_off_on_a_narrow_terminal(fedtilt, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    said = fedtilt("run", *QUICK, "--seeds", "2")
    assert "…" not in said.out
    assert max(len(line) for line in said.out.splitlines() if "run" not in line and "report" not in line) <= width
    table = json.loads(next(Path("runs").glob("*/results.json")).read_text())
    for name, values in table["methods"].items():
        row = next(line for line in said.out.splitlines() if line.strip().startswith(name))
        assert f"{values['accuracy']['mean']:.2f} ± {values['accuracy']['std']:.2f}" in row


def test_names_are_printed_as_they_are(fedtilt) -> None:
    """A table of the user's own, with names that look like markup, from the file to the export."""
    rows = ["a,b,label,site"]
    for i in range(120):
        rows.append(f"{i % 7},{(i * 5) % 11},{'x[red]' if (i % 7) > 3 else 'y'},{'St. Mary [/]' if i % 3 else '[b]'}")
    Path("table.csv").write_text("\n".join(rows))
    Path("mine.toml").write_text(
        '[data]\nfile = "table.csv"\ntarget = "label"\nclient = "site"\n[clients]\npartition = "column"\n'
        '[model]\nname = "logistic"\n[train]\nrounds = 2\nparticipation = 1.0\nepochs = 1\nworkers = 0\n'
        '[[methods]]\npreset = "ditto"\nname = "ditto [x]"\n'
    )
    said = fedtilt("run", "mine.toml", "--out", "a[red]b")
    assert said.code == 0, said.err
    assert "run folder: a[red]b" in said.out
    assert "ditto [x]" in said.out
    assert "St. Mary [/]" in said.out or "[b]" in said.out
    exported = fedtilt("export", "a[red]b", "--method", "ditto [x]", "--client", "0", "--to", "m.safetensors")
    assert exported.out.endswith("to m.safetensors\n")


def test_clients_with_few_or_no_test_rows_are_told(fedtilt) -> None:
    _write_sites()
    lines = Path("table.csv").read_text().splitlines()
    wrong = [line.replace(",yes,", ",no,") if ",yes," in line else line.replace(",no,", ",yes,") for line in lines[1:9]]
    small = [line[:-1] + "small" for line in wrong]  # the shared model fails its two test rows
    lone = [lines[1][:-1] + name for name in ("lone", "[b]")]
    Path("table.csv").write_text("\n".join([*lines, *small, *lone]))
    settings = ["--method", "fedavg", "--set", "train.rounds=5"]
    said = fedtilt("run", "mine.toml", *settings)
    assert said.code == 0, said.err
    row = next(line for line in said.out.splitlines() if line.strip().startswith("fedavg"))
    assert "small: 0 % (0 of 2)" in row
    assert "clients without test data, which are not judged: [b]; lone" in said.out
    again = fedtilt("run", "mine.toml", *settings, "--seeds", "3")
    folded = " ".join(again.out.split())
    assert "not judged: [b], seed 0; lone, seed 0; [b], seed 1; lone, seed 1; [b], seed 2 and 1 more" in folded
    Path("table.csv").write_text("\n".join([*lines, *small, lone[0]]))
    assert "a client without test data, which is not judged: lone" in fedtilt("run", "mine.toml", *settings).out
    _write_sites()
    whole = fedtilt("run", "mine.toml", *settings).out
    assert "not judged" not in whole
    assert " of " not in next(line for line in whole.splitlines() if line.strip().startswith("fedavg"))


def test_what_is_not_as_it_was_is_told(fedtilt) -> None:
    fedtilt("run", *QUICK, "--out", "here", "--quiet", "--set", "storage.checkpoint_seconds=0")
    shared = Path("here/seed-0/checkpoints/round-00003/shared.safetensors")
    shared.write_bytes(shared.read_bytes() + b"x")
    said = fedtilt("export", "here", "--method", "ditto", "--to", "m.safetensors")
    assert said.code == 0
    assert "note: the checkpoint of round 3 is damaged" in said.err
    assert "note: the checkpoint of round 3 is damaged" in fedtilt("resume", "here", "--quiet").err
    spec = Path("here/spec.toml")
    spec.write_text(spec.read_text().replace("seeds = 1", "seeds = 2"))
    assert "was begun with seeds [0], and its spec.toml now says [0, 1]" in fedtilt("resume", "here").err
    Path("file").write_text("")
    assert "file is a file; choose another folder" in fedtilt("run", "--out", "file").err
    assert "cannot write file/x" in fedtilt("export", "here", "--method", "ditto", "--to", "file/x").err
