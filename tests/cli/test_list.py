"""`fedtilt --help` is fast, and `fedtilt list` shows the runs of a folder."""

import json
import subprocess
import sys
from pathlib import Path

from fedtilt.cli import _COMMANDS, _help_text, import_command

QUICK = ["--set", "train.rounds=2", "--set", "train.epochs=1", "--set", "clients.count=4", "--set", "train.workers=0"]


def test_help_imports_neither_torch_nor_a_command() -> None:
    code = (
        "import sys; sys.argv = ['fedtilt', '--help']\n"
        "from fedtilt.cli import main\n"
        "try: main()\n"
        "finally: print('imported:', sorted({'torch', 'fedtilt.spec', 'sklearn'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "imported: []" in found.stdout
    assert "Train every method of a spec on one federation" in found.stdout
    for name in _COMMANDS:
        assert f" {name} " in found.stdout


def test_the_help_of_every_command_is_that_of_its_function() -> None:
    for name in _COMMANDS:
        assert _help_text(name).split() == str(import_command(name).help).split(), name


def test_list_has_the_methods_of_every_run_and_names_what_is_damaged(fedtilt, tmp_path: Path) -> None:
    assert fedtilt("run", *QUICK, "--out", "runs/first", "-q").code == 0
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{}")
    listed = fedtilt("list")
    assert listed.code == 0, listed.err
    assert "digits, 4 clients" in listed.out
    assert "runs/broken/run.json is damaged" in " ".join(listed.out.split())
    entries = {Path(entry["folder"]).name: entry for entry in json.loads(fedtilt("list", "--json").out)}
    results = json.loads((tmp_path / "runs" / "first" / "results.json").read_text())["methods"]
    methods = entries["first"]["methods"]
    assert [m["name"] for m in methods] == sorted(results, key=lambda m: -results[m]["accuracy"]["mean"])
    assert {m["name"]: m["mean"] for m in methods} == {m: found["accuracy"]["mean"] for m, found in results.items()}
    for method in methods:
        assert f"{method['mean']:.2f} %" in listed.out
    assert entries["broken"]["problem"]
    empty = fedtilt("list", "nowhere")
    assert (empty.code, empty.err.count("\n")) == (2, 1)
    assert "has no run folders" in empty.err
