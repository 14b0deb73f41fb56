"""The package as users get it: the wheel, its import time, and the names that are promised."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import fedtilt as ft

ROOT = Path(__file__).parent.parent


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_installs_into_an_empty_environment_and_imports(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", site, str(wheel))
    # The dependencies are those of this environment; as PYTHONPATH it does not bring its editable fedtilt along.
    code = "import fedtilt, fedtilt.spec; print(fedtilt.__file__, fedtilt.__version__, fedtilt.spec.builtin_names())"
    printed = run(python, "-c", code, PYTHONPATH=sysconfig.get_path("purelib"))
    assert printed.startswith(site)
    assert ft.__version__ in printed
    assert "digits" in printed


def test_import_is_light() -> None:
    """What `import fedtilt` adds to `import torch`: no pydantic, sklearn, pandas, plotly, typer or rich."""
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
        found = [word for word in forbidden if word in code]
        assert not found, f"{path.name} uses {found}"


def test_the_command_line_runs_as_a_module() -> None:
    assert ft.__version__ in run(sys.executable, "-m", "fedtilt", "--version")
