"""`fedtilt deploy record`: every row follows from the project, and nothing that people have written is lost."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import fedtilt as ft
from fedtilt.flower.deploy.allowed_apps import app_digest
from fedtilt.flower.deploy.project import write_project
from fedtilt.flower.deploy.record import MARK, record_of
from fedtilt.flower.site import DECLARES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "mine", 3)
    return tmp_path / "mine"


def change(project: Path, old: str, new: str) -> None:
    """Change spec.toml."""
    path = project / "spec.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def rows(text: str) -> dict[str, str]:
    """The rows of all tables of a record, by their first cell."""
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return {first.strip(): second.strip() for first, second in cells}


def test_a_new_project_is_described_as_it_is(project: Path) -> None:
    found = rows(record_of(project))
    assert found["what is computed"] == "a model (mlp) that predicts a class, the column `diagnosis`, by fedtilt"
    assert found["how long"] == "5 rounds, in each of which 3 of 3 sites train"
    assert found["code"].endswith(f"this one: {app_digest(project)}")
    assert "with at least 5 rows" in found["site → server, first"]
    trained = "the shared model that it has trained; its number of training samples"
    assert found["site → server, in every round in which it trains"] == trained
    assert found["site → server, in evaluated rounds"].split("; ") == [
        "correct predictions, or errors, and test samples by class or range"
    ]
    assert found["never leaves the site"] == "samples and labels, the personal model, its report, its log"
    assert "the last 3 good ones" in found["shared models, on the server, in runs/mine-fedtilt"]
    assert found["differential privacy of the shared model"].startswith("none")
    assert found["wrong or hostile sites"] == "screening, at 3 times the median"
    people = [text for text in found.values() if text.startswith(MARK)]
    assert len(people) == 11
    assert all(text.startswith(f"{MARK} to be filled in by: ") for text in people)


def test_it_follows_the_spec(project: Path) -> None:
    change(project, 'preset = "fedtilt"\ntau = 1.0\nlam = 0.0\nmu = 0.01', 'preset = "scaffold"')
    change(project, 'target = "diagnosis"', 'target = "diag|nosis"\ndrop = ["id"]\ngroup = "sex"')
    change(project, "lr = 0.1", 'lr = 0.1\nscreen = 0\naudit = true\nstop = "patience"')
    change(project, "[clients]", "[clients]\nvalidation = 0.2")
    change(project, "participation = 1.0", "participation = 0.34")
    path = project / "pyproject.toml"
    path.write_text(path.read_text().replace("kept-rounds = 3", "kept-rounds = 7"))
    settings = {"share-summary": False} | {f"declare-{name}": not default for name, (default, *_) in DECLARES.items()}
    found = rows(record_of(project, node_config=settings))
    assert found["columns that the spec names"] == "target: `diag\\|nosis`; groups: `sex`; not used: `id`"
    assert found["how long"] == "5 rounds, in each of which 1 of 3 sites train"
    assert found["site → server, first"] == "nothing: share-summary=false"
    assert found["site → server, in every round in which it trains"].endswith("; `control` of `scaffold`")
    declared = [DECLARES["classes"][2], *(DECLARES[name][1] for name in ("groups", "metrics", "scores", "suspects"))]
    assert found["site → server, in evaluated rounds"].split("; ") == [
        *declared,
        "correct predictions, or errors, and validation samples in total",
    ]
    assert "the personal model" not in found["never leaves the site"]
    assert "whose labels look wrong" in found["never leaves the site"]
    assert "the last 7 good ones" in found["shared models, on the server, in runs/mine-scaffold"]
    assert found["wrong or hostile sites"] == "no screening"


def test_epsilon_is_the_budget_or_what_the_noise_costs(project: Path) -> None:
    pytest.importorskip("dp_accounting")
    spec = project / "spec.toml"
    before = spec.read_text().replace("tau = 1.0", "tau = 0.0")
    spec.write_text(before + "\n[privacy]\nclip = 0.5\nepsilon = 8\ndelta = 1e-3\n")
    text = "of whole sites: epsilon ≤ 8 at delta 0.001; updates are clipped to 0.5"
    assert rows(record_of(project))["differential privacy of the shared model"] == text
    spec.write_text(before + "\n[privacy]\nclip = 0.5\nnoise = 4\ndelta = 1e-3\n")
    from dp_accounting import get_epsilon_gaussian

    epsilon = get_epsilon_gaussian(2 / 5**0.5, 1e-3)  # five rounds; replacing a site moves the mean by 2 clip / C
    assert f"epsilon ≤ {epsilon:.3g} at" in rows(record_of(project))["differential privacy of the shared model"]


def test_the_command_writes_a_new_file_and_never_over_one(fedtilt, project: Path) -> None:
    result = fedtilt("deploy", "record", str(project))
    path = project / "record-of-processing.md"
    assert result.out == f"wrote  {path}: 11 rows with {MARK} need people\n"
    assert path.read_text() == record_of(project)
    path.write_text("by hand")
    result = fedtilt("deploy", "record", str(project))
    assert (result.code, path.read_text()) == (2, "by hand")
    assert result.err == f"error: {path} exists, and people may have filled it in; choose another file with --to\n"
    assert fedtilt("deploy", "record", str(project), "--to", str(project / "b.md")).code == 0


def test_a_setting_that_changes_nothing_is_an_error(project: Path) -> None:
    with pytest.raises(ft.InputError, match=r"^--node-config data does not change what a site sends; use share-"):
        record_of(project, node_config={"data": "/a.csv"})
    with pytest.raises(ft.InputError, match=r"^declare-classes in --node-config must be true or false, got 1$"):
        record_of(project, node_config={"declare-classes": 1})
