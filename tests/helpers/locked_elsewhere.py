"""A folder that another process has locked, as another command does."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD = "import sys; from pathlib import Path; from fedtilt.locks import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"


@contextmanager
def locked_elsewhere(folder: Path) -> Iterator[None]:
    """Lock a folder in another process, as another command does."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield
        process.stdin.close()
