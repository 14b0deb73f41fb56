"""The examples run, and their results show what their docstrings say."""

import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def output_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example with its arguments in a new folder, warnings as errors, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capfd.readouterr().out

    return run


def test_mislabelled(output_of: Callable[..., str]) -> None:
    plain, tilted = (float(part.split()[-1]) for part in output_of("mislabelled").split("%")[:2])
    assert tilted > plain + 3


def test_round_by_round(output_of: Callable[..., str]) -> None:
    lines = output_of("round_by_round").splitlines()
    assert lines[0].startswith("round  1: clients")
    assert float(lines[-2].split("worst ")[1].split()[0]) > 80
    assert 80 < float(lines[-1].split(": ")[1].split()[0]) <= 100


def test_own_table(output_of: Callable[..., str]) -> None:
    lines = output_of("own_table").splitlines()
    methods = lines[0].split()[1:]
    rare_class = [
        dict(zip(methods, map(float, line.split()[-3:]), strict=True)) for line in lines if " ill " in f"{line} "
    ]
    assert len(rare_class) == 3  # hospitals
    assert all(row["fedtilt"] > max(row["fedavg"], row["ditto"]) for row in rare_class)


@pytest.mark.slow
def test_frozen_backbone(output_of: Callable[..., str]) -> None:
    head, whole = (line.split() for line in output_of("frozen_backbone").splitlines())
    assert [line[0] for line in (head, whole)] == ["new_head:", "from_the_start:"]
    assert float(head[1]) > float(whole[1])
    assert [line[-3] for line in (head, whole)] == ["258", "5154"]


@pytest.mark.slow
def test_lora(output_of: Callable[..., str]) -> None:
    before, after = output_of("lora").splitlines()
    assert float(before.split()[1]) < 10
    assert float(after.split()[1]) > 70
    assert after.endswith("1320 of 8970 numbers travel")


@pytest.mark.slow
def test_language(output_of: Callable[..., str]) -> None:
    pytest.importorskip("transformers")
    lines = output_of("language").splitlines()
    shared, own = ({line.rsplit(None, 2)[0]: float(line.split()[i]) for line in lines[2:10]} for i in (-2, -1))
    ups = [client for client in shared if client.startswith("up")]
    assert len(ups) == 6
    for odd in ("down", "twos"):  # personal adapters serve those whom one model for all does not
        assert shared[odd] > max(shared[client] for client in ups) + 1 > own[odd]
    assert [line.split(":")[0] for line in lines[10:]] == ["fedavg", "fedtilt"]


def test_three_levels(output_of: Callable[..., str]) -> None:
    lines = output_of("three_levels").splitlines()
    rows = {line.split()[0]: [float(value) for value in line.split()[1:]] for line in lines[2:5] + lines[8:10]}
    none, by_class, by_class_and_ward = range(3)
    assert rows["ill"][by_class] > rows["ill"][none]
    assert rows["children"][by_class_and_ward] > max(rows["children"][:2])
    assert lines[-1].startswith("worst ward of a hospital: none ")


def test_own_images(output_of: Callable[..., str]) -> None:
    lines = output_of("own_images").splitlines()
    rows = {line.split()[0]: [float(value) for value in line.split()[1:]] for line in lines[2:]}
    assert set(rows) == {"island", "north", "south"}
    assert min(accuracy for row in rows.values() for accuracy in row) > 90


@pytest.mark.slow
def test_wrong_labels(output_of: Callable[..., str]) -> None:
    suspects, samples, _, found, wrong = (int(number) for number in re.findall(r"\d+", output_of("wrong_labels"))[:5])
    assert samples > 1000
    assert found > 0.8 * suspects
    assert found > 0.85 * wrong


def test_certificate(output_of: Callable[..., str]) -> None:
    lines = output_of("certificate").splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["ditto", "fedtilt"]
    assert " ".join(lines[2:]).startswith("with 95 % confidence, no client's accuracy is below 8")


@pytest.mark.slow
def test_choose_tilts(output_of: Callable[..., str]) -> None:
    lines = output_of("choose_tilts").splitlines()
    assert len(lines) == 11
    assert [line.split(";")[0] for line in lines[-2:]] == ["by accuracy: tau 0, lam -2", "by worst: tau 0, lam -2"]


def test_compare_runs(output_of: Callable[..., str], tmp_path: Path) -> None:
    output = output_of("compare_runs", str(tmp_path))
    assert output == f"wrote {tmp_path / 'report.html'}\n"
    assert "<h1>2 runs</h1>" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_local_deployment(output_of: Callable[..., str]) -> None:
    lines = output_of("local_deployment").splitlines()
    assert [line.split()[3] for line in lines if line.startswith("$ fedtilt deploy")] == ["new", "up", "run", "down"]


def test_flower_overhead(output_of: Callable[..., str]) -> None:
    first, *steps, total = output_of("flower_overhead", "16").splitlines()
    assert first == "13,002 parameters (0.0 MB)"
    times = [float(line.split()[-2]) for line in (*steps, total)]
    assert len(steps) == 6
    assert times[-1] == pytest.approx(sum(times[:-1]), abs=0.5)  # each is rounded to 0.1


@pytest.mark.slow
def test_cluster(output_of: Callable[..., str]) -> None:
    assert output_of("cluster").splitlines()[-1] == "bit-identical: True"


def _heights(figure: Path) -> list[list[float]]:
    """The heights of the points of every line of a figure, upwards."""
    lines = re.findall(r'points="([^"]*)"', figure.read_text())
    return [[-float(point.split(",")[1]) for point in line.split()] for line in lines]


def test_two_of_the_pictures(output_of: Callable[..., str], tmp_path: Path) -> None:
    output_of("method_in_pictures", str(tmp_path), "weights", "tau")
    assert {path.name for path in tmp_path.glob("*.svg")} == {"weights.svg", "tau.svg"}
    _, ill = _heights(tmp_path / "tau.svg")
    assert ill == sorted(ill)


@pytest.mark.slow
def test_method_in_pictures(output_of: Callable[..., str], tmp_path: Path) -> None:
    output_of("method_in_pictures", str(tmp_path))
    clean, wrong = _heights(tmp_path / "lam.svg")  # lam -5, -2, -1, 0, 1, 5
    assert max(clean) - min(clean) < 0.1 * (wrong[1] - wrong[5])
    assert wrong[1] > wrong[3] > wrong[5]
    well, ill = _heights(tmp_path / "tau.svg")  # from the highest line to the lowest
    assert ill == sorted(ill)
    assert well == sorted(well, reverse=True)
    (other, _alike) = _heights(tmp_path / "q.svg")
    assert other == sorted(other)
    personal, shared = _heights(tmp_path / "mu.svg")
    assert max(personal[3:6]) > max(personal[0], personal[-1], shared[0])


def test_messy_hospitals(output_of: Callable[..., str]) -> None:
    assert output_of("messy_hospitals").startswith("wrote exports/berlin.csv, exports/wien.csv and exports/london.csv")
    assert "Schlüssel" in Path("exports/berlin.csv").read_text(encoding="latin-1")


def test_patients(output_of: Callable[..., str]) -> None:
    assert output_of("patients") == "wrote patients.csv: 900 patients of 3 hospitals\n"
    lines = Path("patients.csv").read_text().splitlines()
    assert len(lines) == 901
    assert lines[0] == "patient,age,sex,ward,pressure,admitted,diagnosis,hospital"


@pytest.mark.slow
def test_own_methods(output_of: Callable[..., str]) -> None:
    outputs = [output_of("own_objective"), output_of("own_server_rule"), output_of("own_client_update")]
    figures = [re.findall(r"(\w+) +accuracy ([\d.]+) %, worst 10 % of clients ([\d.]+) %", text) for text in outputs]
    assert [[name for name, *_ in rows] for rows in figures] == [
        ["fedavg", own] for own in ("cvar", "online", "memory")
    ]
    (fedavg, cvar), (other_fedavg, online), (same_fedavg, memory) = figures
    assert fedavg == same_fedavg
    assert float(cvar[2]) > float(fedavg[2])  # fairer
    assert float(online[2]) > float(other_fedavg[2])
    assert float(memory[1]) > float(fedavg[1])  # personal


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'output_of\("(\w+)"', Path(__file__).read_text()))
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts - tested == {"line_chart"}  # draws for others
