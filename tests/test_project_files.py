"""The files around the code: licences, workflows, lists with their proofs, and how pages say to install fedtilt."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from docs.coverage_page import page as coverage_page

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
IN_GIT = (ROOT / ".git").exists() and shutil.which("git") is not None
INSTALLS_BY_NAME = re.compile(r"pip3? install[^`\n]*?[ \"']fedtilt(?![\w./*-])")


def texts() -> dict[Path, str]:
    """Everything that tells people how to install something, with line breaks as blanks."""
    files = [*ROOT.glob("*.md"), ROOT / "Dockerfile", ROOT / "paper/paper.md", *(ROOT / ".github").rglob("*.*")]
    for folder, ends in {
        "docs": ("md", "ipynb", "py"),
        "src": ("py", "tmpl"),
        "examples": ("py",),
        "benchmarks": ("py", "md"),
    }.items():
        files += [file for end in ends for file in (ROOT / folder).rglob(f"*.{end}") if "_build" not in file.parts]
    return {file: re.sub(r"(?<=install)\s+", " ", file.read_text()) for file in files}


def test_nothing_installs_fedtilt_from_an_index() -> None:
    assert INSTALLS_BY_NAME.search('pip install "fedtilt[tune]"')
    assert INSTALLS_BY_NAME.search("pip install -U fedtilt")
    assert not INSTALLS_BY_NAME.search('pip install "$(ls dist/fedtilt-*.whl)[report]"')
    found = [str(file.relative_to(ROOT)) for file, text in texts().items() if INSTALLS_BY_NAME.search(text)]
    assert not found


# -- the review lists --------------------------------------------------------------------------------------------------


def test_every_point_of_the_lists_has_a_state_and_a_proof() -> None:
    text = (ROOT / "docs/checklists.md").read_text()
    lists = re.split(r"^## ", text, flags=re.MULTILINE)[1:-1]
    assert [part.splitlines()[0].split(",")[0] for part in lists] == [
        "JOSS", "pyOpenSci", "OpenSSF Best Practices", "REUSE",
    ]  # fmt: skip
    for part in lists:
        points = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")][2:]
        assert len(points) >= 4
        for point, state, proof in points:
            assert re.match(r"(met|in part|not met|open|does not apply)\b", state), point
            links = re.findall(r"\]\(([^)#]+)", proof)
            assert links, point
            assert all((ROOT / "docs" / link).exists() for link in links), point


def test_the_list_of_openssf_is_complete() -> None:
    text = (ROOT / "docs/checklists.md").read_text()
    rows = re.findall(r"^\| ([a-z_, 0-9]+) \|", text, re.MULTILINE)
    names = [name for row in rows for name in row.split(", ") if "_" in name or name in OF_ONE_WORD]
    assert len(names) == len(set(names)) == 67


OF_ONE_WORD = {"interact", "contribution", "discussion", "english", "maintained", "build", "test", "warnings"}
OF_ONE_WORD |= {"static_analysis", "dynamic_analysis"}


# -- licences and metadata ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not IN_GIT, reason="not a clone")
def test_every_file_has_a_licence() -> None:
    pytest.importorskip("reuse")
    done = subprocess.run([sys.executable, "-m", "reuse", "lint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not IN_GIT, reason="not a clone")
def test_no_private_key_is_in_the_repository() -> None:
    found = subprocess.run(
        ["git", "grep", "-lE", "BEGIN [A-Z ]*PRIVATE KEY-"], cwd=ROOT, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (1, ""), found  # 1: no match


def test_the_licence_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0 AND MIT"
    assert (ROOT / "LICENSES/Apache-2.0.txt").read_text() == (ROOT / "LICENSE").read_text()
    assert (ROOT / "LICENSES/MIT.txt").read_text() == (ROOT / "src/fedtilt/report/plotly-cartesian.LICENSE").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]
    head = yaml.safe_load((ROOT / "paper/paper.md").read_text().split("---")[1])
    assert [author["name"] for author in head["authors"]] == [author["name"] for author in project["authors"]]


def test_the_paper_cites_what_its_bibliography_has() -> None:
    text, bibliography = (ROOT / "paper/paper.md").read_text(), (ROOT / "paper/paper.bib").read_text()
    assert set(re.findall(r"\[@(\w+)\]", text)) == set(re.findall(r"^@\w+\{(\w+),", bibliography, re.MULTILINE))
    sections = ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement"]
    sections += ["AI usage disclosure", "Acknowledgements", "References"]  # those that JOSS asks for, in its order
    assert re.findall(r"^# (.+)$", text, re.MULTILINE) == sections
    assert 750 <= len(text.split("---", 2)[2].split()) <= 1750


def test_python_versions_that_are_named_are_those_that_have_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    guide = (ROOT / "docs/getting-started.md").read_text()
    has_run = re.findall(r"^\| (3\.\d+) \| (?!nothing)", guide, re.MULTILINE)
    assert named == has_run
    matrix = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert set(named) <= set(matrix)


# -- workflows ---------------------------------------------------------------------------------------------------------


def test_every_action_is_pinned_by_its_hash_and_names_its_version() -> None:
    lines = [line.strip() for file in WORKFLOWS for line in file.read_text().splitlines() if "uses:" in line]
    assert len(lines) > 10
    for line in lines:
        assert re.fullmatch(r"- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_the_workflows_have_no_findings() -> None:
    zizmor = shutil.which("zizmor", path=f"{Path(sys.executable).parent}:{Path(sys.prefix) / 'bin'}") or shutil.which(
        "zizmor"
    )
    if zizmor is None:
        pytest.skip("zizmor is not installed")
    done = subprocess.run([zizmor, "--offline", "--no-progress", ".github"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_the_workflows_are_valid() -> None:
    done = subprocess.run(["actionlint", *map(str, WORKFLOWS)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_release_checks_the_tag_and_adds_the_address_of_the_repository(tmp_path: Path) -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    steps = {step["name"]: step["run"] for step in jobs["build"]["steps"] if "name" in step}
    for name in ("pyproject.toml", "CITATION.cff", "src/fedtilt/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    version = "90.1.0"

    def set_version(name: str, before: str) -> None:
        text, count = re.subn(rf'^({before})[^"\n]+', rf"\g<1>{version}", (ROOT / name).read_text(), flags=re.MULTILINE)
        (tmp_path / name).write_text(text)
        assert count == 1

    def run(code: str, tag: str) -> int:
        names = {"GITHUB_REF_NAME": tag, "GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "owner/name"}
        return subprocess.run(
            ["bash", "-e", "-c", code], cwd=tmp_path, env=names | {"PATH": "/usr/bin:/bin"}
        ).returncode

    check, address = steps.values()
    set_version("src/fedtilt/version.py", '__version__ = "')
    assert run(check, f"v{version}") != 0  # the citation has another
    set_version("CITATION.cff", "version: ")
    assert (run(check, f"v{version}"), run(check, "v99.0") != 0) == (0, True)
    assert run(address, f"v{version}") == 0
    before = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    after = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert after.pop("urls") == before.pop("urls") | {
        "Repository": "https://host/owner/name",
        "Issues": "https://host/owner/name/issues",
        "Changelog": "https://host/owner/name/blob/main/CHANGELOG.md",
    }
    assert after == before
    writes = {
        name: [key for key, value in job.get("permissions", {}).items() if value == "write"]
        for name, job in jobs.items()
    }
    assert writes == {"build": ["id-token", "attestations"], "publish": ["id-token"], "draft": ["contents"]}


@pytest.mark.parametrize("file", [".github/dependabot.yml", ".readthedocs.yaml", ".github/ISSUE_TEMPLATE/bug.yml"])
def test_settings_of_the_host_are_readable(file: str) -> None:
    assert isinstance(yaml.safe_load((ROOT / file).read_text()), dict)


# -- coverage ----------------------------------------------------------------------------------------------------------


def test_the_coverage_page_adds_up_folders() -> None:
    def summary(lines: int, run: int, branches: int, taken: int) -> dict:
        counts = {"num_statements": lines, "covered_lines": run, "num_branches": branches, "covered_branches": taken}
        return {"summary": counts | {"percent_covered_display": "0"}}

    files = {
        "src/fedtilt/math/a.py": summary(1000, 900, 10, 5),
        "src/fedtilt/math/deep/b.py": summary(1000, 1000, 30, 30),
        "src/fedtilt/c.py": summary(500, 0, 0, 0),
    }
    text = coverage_page({"files": files, "meta": {"version": "7", "timestamp": "2026-11-18T00:00:00"}}, [])
    assert text.splitlines()[-3:] == [
        "| `.` | 500 | 0.0 % | 0 |  |",
        "| `math` | 2,000 | 95.0 % | 40 | 87.5 % |",
        "| **all** | 2,500 | 76.0 % | 40 | 87.5 % |",
    ]
    assert "the tests of `make test` run" in text
    assert '`make coverage ARGS="tests/math"`' in coverage_page(
        {"files": files, "meta": {"version": "7", "timestamp": "2"}}, ["tests/math"]
    )
