"""`fedtilt list` shows the runs of a folder."""

import json
from pathlib import Path

QUICK = ["--set", "train.rounds=2", "--set", "train.epochs=1", "--set", "clients.count=4", "--set", "train.workers=0"]


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
