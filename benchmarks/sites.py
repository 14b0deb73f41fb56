"""A real federation with many sites on one machine: seconds of a round, sites that take part, memory of a site.

    python -m benchmarks.sites --sites 50 --rounds 3 --out sites.json
    python -m benchmarks.sites --quick                                 # two sites, one round

`fedtilt deploy new`, `up`, `run` and `down`, as a user runs them: a SuperLink, and a SuperNode with a SuperExec for
every site, over TLS with registered keys, and a table of its own for each. Flower starts a process for every message.
Memory is the proportional set size (PSS), in which a page that several processes share counts once; every second.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.options import make_result_parser, require_package, save_result
from fedtilt.files import read_json

if TYPE_CHECKING:
    from fedtilt.flower.deploy.local_cluster import LocalCluster


def fedtilt(*arguments: str) -> float:
    """Run a command of fedtilt; returns its seconds."""
    print(f"$ fedtilt {' '.join(arguments)}", flush=True)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedtilt", *arguments], check=True)
    return time.perf_counter() - start


class Watch(threading.Thread):
    """The memory of all processes of a cluster and the times at which rounds end, until `stop` is set."""

    def __init__(self, cluster: "LocalCluster") -> None:
        super().__init__(daemon=True)
        self._cluster, self.stop, self.mib, self.processes = cluster, threading.Event(), [0.0], [0]
        self.times: dict[int, float] = {}  # at which this many rounds were recorded

    def run(self) -> None:
        """Look every second."""
        while not self.stop.wait(1):
            pids = self._cluster.running()
            self.mib.append(sum(map(proportional_mib, pids)))
            self.processes.append(len(pids))
            self.times.setdefault(len(recorded_rounds(self._cluster)), time.perf_counter())


def recorded_rounds(cluster: "LocalCluster") -> dict[str, Any]:
    """What the server has recorded of every round."""
    files = list(cluster.runs_folder.glob("*/seed-*/participation.json"))
    return dict(read_json(files[0])["rounds"]) if files else {}


def proportional_mib(pid: int) -> float:
    """The proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(project: Path, sites: int, rounds: int) -> dict[str, Any]:
    """Create a project, start its cluster, train, and stop it whatever happens."""
    from fedtilt.flower.deploy.local_cluster import LocalCluster

    fedtilt("deploy", "new", str(project), "--sites", str(sites))
    try:
        up = fedtilt("deploy", "up", str(project))
        cluster = LocalCluster.load(project / ".fedtilt")
        idle, busy = Watch(cluster), Watch(cluster)
        idle.start()
        time.sleep(5)
        idle.stop.set()
        idle.join()
        busy.start()
        run = fedtilt("deploy", "run", str(project), "--set", f"train.rounds={rounds}")
        time.sleep(1.5)  # the last round is noted
        busy.stop.set()
        busy.join()
    finally:
        fedtilt("deploy", "down", str(project))
    recorded = recorded_rounds(cluster)
    counts = sorted(busy.times)
    return {
        "sites": sites, "rounds": rounds, "up_seconds": up, "run_seconds": run,
        "round_seconds": (busy.times[counts[-1]] - busy.times[1]) / (rounds - 1) if rounds > 1 else None,
        "sites_of_rounds": [len(entry["accepted"]) for entry in recorded.values()],
        "idle_mib": max(idle.mib), "idle_processes": max(idle.processes), "peak_mib": max(busy.mib),
        "peak_processes": max(busy.processes), "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    require_package("flwr", 'pip install -c constraints.txt -e ".[flower]"')
    sites, rounds = (2, 1) if options.quick else (options.sites, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "federation", sites, rounds)
    print(
        f"{sites} sites on {result['cores']} cores: up in {result['up_seconds']:.0f} s, {rounds} rounds in "
        f"{result['run_seconds']:.0f} s ({result['round_seconds'] or 0:.1f} s each)\n"
        f"sites that took part: {', '.join(map(str, result['sites_of_rounds']))}\n"
        f"{result['idle_mib'] / sites:.0f} MiB a site waiting; at most {result['peak_mib']:.0f} MiB in all, "
        f"with {result['peak_processes']} processes"
    )
    save_result(options, "sites", result)


if __name__ == "__main__":
    main()
