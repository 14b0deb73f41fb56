"""The package as users get it: the wheel, the import time, the public names, and the paths in the documentation."""

import operator
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import fedtilt as ft
import fedtilt.flower
from fedtilt.flower.deploy.programs import environment
from fedtilt.imports import install_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def run(*command: str, **environment: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


EXTRAS = ("plotly", "pandas", "flwr", "PIL", "datasets", "dp_accounting", "tensorboard", "mlflow", "wandb", "onnx",
          "onnxruntime", "onnxscript", "optuna", "ray", "triton")  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A new environment with the wheel and its dependencies, without extras: its Python, and its packages."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = str(folder / "venv" / "bin" / "python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", site, str(wheel))
    for path in Path(sysconfig.get_path("purelib")).iterdir():  # the dependencies of this environment
        if path.name not in (*EXTRAS, "fedtilt") and path.suffix != ".pth" and not Path(site, path.name).exists():
            Path(site, path.name).symlink_to(path)
    return python, site


def test_the_wheel_has_the_package_alone(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    (path,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
    here = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert names == {name for name in here if "__pycache__" not in name}


@pytest.mark.slow
def test_the_wheel_runs_the_demo_without_extras_and_compilers(installed: tuple[str, str], tmp_path: Path) -> None:
    python, site = installed
    nothing = {"PYTHONPATH": "", "PATH": os.path.dirname(python), "XDG_CACHE_HOME": str(tmp_path)}
    code = "import importlib.util, shutil; print(importlib.util.find_spec('fedtilt').origin, shutil.which('cc'))"
    assert run(python, "-c", code, **nothing).split() == [str(Path(site, "fedtilt", "__init__.py")), "None"]
    quick = ["--set", "train.rounds=1", "--set", "train.epochs=1"]
    output = run(python, "-m", "fedtilt", "run", *quick, "--out", str(tmp_path / "run"), **nothing)
    assert "fedtilt" in output
    assert (tmp_path / "run/report.html").exists()
    assert not Path(site, "reproduction").exists()  # it runs from a clone, and nothing of the package needs it


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["run", "--log", "tensorboard:logs"], "tensorboard"),
        (["run", "--log", "mlflow:logs"], "mlflow"),
        (["run", "--log", "wandb:trial"], "wandb"),
        (["export", "run", "--method", "fedavg", "--to", "model.onnx"], "onnx"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    fedtilt, monkeypatch: pytest.MonkeyPatch, arguments: list[str], extra: str
) -> None:
    fedtilt("run", "--set", "train.rounds=1", "--set", "train.epochs=1", "--method", "fedavg", "--out", "run", "-q")
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)
    result = fedtilt(*arguments)
    assert result.code == 2
    assert install_command(extra) in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_the_source_distribution_has_what_the_tests_and_the_image_need(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path))
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "Dockerfile",
        ".ci/fresh",
        ".dockerignore",
        "requirements.lock",
        "constraints.txt",
        "SECURITY.md",
        "LICENSE",
    }
    assert needed <= names
    assert {"reproduction/__main__.py", "benchmarks/rounds.py"} <= names
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} <= names


def test_the_lock_agrees_with_the_constraints_and_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = [Requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines()]
    versions = {canonicalize_name(r.name): next(iter(r.specifier)).version for r in locked}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(r.name): next(iter(r.specifier)).version for r in pins}
    assert {name: versions[name] for name in versions.keys() & pinned} == {
        name: pinned[name] for name in versions.keys() & pinned
    }
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["flower"], *extras["report"]]:
        requirement = Requirement(text)
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_the_citation_has_the_last_release() -> None:
    released = re.findall(r"^## (\d\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {released[0][0]}\n" in citation
    assert f"\ndate-released: {released[0][1]}\n" in citation
    assert Version(ft.__version__) >= Version(released[0][0])


def test_the_image_copies_files_that_exist_and_starts_what_it_installs() -> None:
    image = (ROOT / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sources = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", image, re.MULTILINE)).split()
    assert {"src", "pyproject.toml", "requirements.lock"} <= set(sources)
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert set(sources) == set(sent)
    assert all((ROOT / source).exists() for source in sources)

    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", image)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    (build,) = re.findall(r"pip install --no-cache-dir (hatchling==\S+)", image)
    (required,) = map(Requirement, project["build-system"]["requires"])
    assert next(iter(Requirement(build).specifier)).version in required.specifier
    assert len(re.findall(r"^torch==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)) == 1  # grep finds one
    (command,) = re.findall(r'^CMD \["(\w+)"', image, re.MULTILINE)
    assert command in project["project"]["scripts"]
    user = re.findall(r"^USER (\d+)$", image, re.MULTILINE)[-1]
    assert int(user) > 0
    assert f"--uid {user} " in image
    variables = environment(Path("/var/lib/fedtilt/flwr"))
    del variables["PATH"]
    assert all(f"{name}={value}" in image for name, value in variables.items())


def test_the_public_names_load_no_extra_and_no_part_of_the_command_line() -> None:
    names = (
        "[getattr(fedtilt, name) for name in fedtilt.__all__ if name != 'FairClassifier']"  # a class of scikit-learn's
    )
    code = f"import torch, sys, fedtilt; before = set(sys.modules); {names}; print(*(set(sys.modules) - before))"
    loaded = {name.split(".")[0] for name in run(sys.executable, "-c", code).split()}
    assert not loaded & {"pydantic", "sklearn", "scipy", "pandas", "plotly", "typer", "rich", "flwr"}


def test_what_needs_no_torch_does_not_import_it() -> None:
    light = "fedtilt, fedtilt.cli.deploy, fedtilt.flower.deploy.local_cluster, fedtilt.flower.deploy.project"
    loaded = set(run(sys.executable, "-c", f"import sys, {light}; print(*sys.modules)").split())
    assert not loaded & {"torch", "flwr", "pandas", "sklearn"}


@pytest.mark.parametrize("package", [ft, ft.data, fedtilt.flower], ids=lambda package: package.__name__)
def test_every_public_name_can_be_imported(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'bogus'"):
        _ = package.bogus


def test_the_names_of_the_paper_are_at_the_top() -> None:
    top = {"run", "resume", "simulate", "fedtilt", "fedavg", "fedprox", "ditto", "term", "tilted_mean", "nested_tilt"}
    assert top <= set(ft.__all__)
    assert not set(ft.methods.PRESETS) & set(ft.__all__) - top


def test_no_public_name_hides_a_module_of_the_package() -> None:
    for module in pkgutil.iter_modules(ft.__path__):  # `import fedtilt.x.y as z` takes x from the package
        assert isinstance(getattr(ft, module.name, ft), ModuleType), module.name


def test_the_library_never_loads_code_from_data() -> None:
    forbidden = ("pickle", "torch.load(", "eval(", "yaml", "exec(")
    for path in (ROOT / "src").rglob("*.py"):
        code = "\n".join(line for line in path.read_text().splitlines() if not line.strip().startswith(("#", '"""')))
        code = code.replace(".eval(", "").replace("allow_pickle=False", "").replace("credentials.yaml", "")
        code = re.sub(r"torch\.load\([^()]*weights_only=True\)|from pickle import UnpicklingError", "", code)
        matches = [word for word in forbidden if re.search(rf"\b{re.escape(word)}", code)]
        assert not matches, f"{path.name} uses {matches}"


def test_the_command_line_runs_as_a_module() -> None:
    assert ft.__version__ in run(sys.executable, "-m", "fedtilt", "--version")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_in_the_documentation_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"[a-z]+:", link)]
    links = [link for link in links if not link.startswith("../../actions/")]  # of the site that hosts the repository
    missing = [link for link in links if not (page.parent / link).exists()]
    prose = re.sub(r"\]\([^)]*\)", "]", text)  # links are relative to the page, other paths to the repository
    paths = re.findall(r"(?<![\w/.:-])((?:src|tests|docs|examples|benchmarks)/[\w./-]*\w)", prose)
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def _anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_anchor_in_the_documentation_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s:]*\.md|)#([^)\s]+)\)", page.read_text())
    missing = [f"{path}#{name}" for path, name in links if name not in _anchors(page.parent / path if path else page)]
    assert not missing


def test_every_public_name_in_the_readme_exists() -> None:
    names = set(re.findall(r"\bft\.([A-Za-z_.]*[A-Za-z_])", (ROOT / "README.md").read_text()))
    assert {"run", "data.load", "models.mlp", "Federation.build"} <= names
    missing = [name for name in names if not _has_attribute(name)]
    assert not missing


def _has_attribute(name: str) -> bool:
    try:
        operator.attrgetter(name)(ft)
    except AttributeError:
        return False
    return True
