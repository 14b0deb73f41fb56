"""`.ci/fresh` runs a command in a view of the machine without temporary files and HOME, or says that it cannot."""

import os
import subprocess
from pathlib import Path

import pytest

FRESH = Path(__file__).parent.parent / ".ci" / "fresh"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script of bash")


def fresh(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FRESH, "bash", "-c", script], cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )


def test_the_command_sees_its_folder_and_no_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("text")
    script = (
        'cat here; echo new > made; cd /; find /dev/shm "$HOME" -mindepth 1; printenv TMPDIR XDG_CACHE_HOME; exit 3'
    )
    done = fresh(tmp_path, script, TMPDIR=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    if done.stderr.startswith("no fresh view"):
        pytest.skip(done.stderr)
    assert (done.returncode, done.stdout, done.stderr) == (3, "text", "")
    assert (tmp_path / "made").read_text() == "new\n"


def test_without_a_view_the_command_runs_after_a_line_that_says_so(tmp_path: Path) -> None:
    refused = tmp_path / "unshare"
    refused.write_text("#!/bin/sh\necho 'not permitted' >&2\nexit 1\n")
    refused.chmod(0o755)
    done = fresh(tmp_path, "echo done; exit 3", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert done.stderr.startswith("no fresh view (not permitted): the command runs with the temporary folders and HOME")
    assert done.stderr.count("\n") == 1
