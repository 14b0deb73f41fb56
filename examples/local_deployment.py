"""Deploy on this machine: a Flower server and three sites with a table each, over TLS (pip install -e ".[flower]").

Flower starts a process for every message, and most of the minute is imports; hence one round. The same commands,
without `up` and `down`, are those of real machines: docs/deployment.md.
"""

import subprocess
import sys
import tempfile
from pathlib import Path


def fedtilt(*arguments: str) -> None:
    """Run a command of fedtilt and show it."""
    print(f"$ fedtilt {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "fedtilt", *arguments], check=True)


def main(project: str) -> None:
    """Create a project, start the processes, train, and stop them whatever happens."""
    fedtilt("deploy", "new", project)
    fedtilt("deploy", "up", project)
    try:
        fedtilt("deploy", "run", project, "--set", "train.rounds=1")
    finally:
        fedtilt("deploy", "down", project)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(str(Path(folder) / "mine"))
