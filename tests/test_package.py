"""The package as users get it: the wheel, the import time, the public names, and the paths in the documentation."""

import operator
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import fedtilt as ft

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def run(*command: str, **environment: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_installs_into_an_empty_environment_and_imports(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", site, str(wheel))
    # PYTHONPATH provides the dependencies of this environment, but not its editable fedtilt.
    code = "import fedtilt, fedtilt.spec; print(fedtilt.__file__, fedtilt.__version__, fedtilt.spec.builtin_names())"
    output = run(python, "-c", code, PYTHONPATH=sysconfig.get_path("purelib"))
    assert output.startswith(site)
    assert ft.__version__ in output
    assert "digits" in output


def test_import_is_light() -> None:
    """`import fedtilt` after `import torch` loads no pydantic, sklearn, scipy, pandas, plotly, typer, rich or flwr."""
    code = "import torch, sys; before = set(sys.modules); import fedtilt; print(*(set(sys.modules) - before))"
    loaded = {name.split(".")[0] for name in run(sys.executable, "-c", code).split()}
    assert not loaded & {"pydantic", "sklearn", "scipy", "pandas", "plotly", "typer", "rich", "flwr"}


def test_public_names() -> None:
    assert set(ft.__all__) <= set(dir(ft))
    for name in (
        "run",
        "resume",
        "simulate",
        "fedtilt",
        "fedavg",
        "fedprox",
        "ditto",
        "term",
        "tilted_mean",
        "nested_tilt",
    ):
        assert callable(getattr(ft, name)), name
    assert ft.aggregate.tilted
    assert ft.data.load
    assert ft.Federation.build


def test_the_library_never_loads_code_from_data() -> None:
    forbidden = ("pickle", "torch.load(", "eval(", "yaml", "exec(")
    for path in (ROOT / "src").rglob("*.py"):
        code = "\n".join(line for line in path.read_text().splitlines() if not line.strip().startswith(("#", '"""')))
        code = code.replace(".eval(", "").replace("allow_pickle=False", "")
        matches = [word for word in forbidden if re.search(rf"\b{re.escape(word)}", code)]
        assert not matches, f"{path.name} uses {matches}"


def test_the_command_line_runs_as_a_module() -> None:
    assert ft.__version__ in run(sys.executable, "-m", "fedtilt", "--version")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_in_the_documentation_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"[a-z]+:", link)]
    missing = [link for link in links if not (page.parent / link).exists()]
    prose = re.sub(r"\]\([^)]*\)", "]", text)  # links are relative to the page, other paths to the repository
    paths = re.findall(r"(?<![\w/.:-])((?:src|tests|docs|examples|benchmarks)/[\w./-]*\w)", prose)
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing
    assert links or paths or page.name == "spec.md"


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
