"""The early end of a deployment, by the sums that sites send of their validation data."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import GroupCounts, Metrics, compute_metrics
from fedtilt.evaluation.round_metrics import StopCheck
from fedtilt.files import interpreting, read_json, write_json
from fedtilt.stopping import Patience


class SiteStopCheck:
    """Decides as `StopCheck` does in a simulation.

    Sites may be offline: a round is compared with the best one over the sites that evaluated both. If there is no such
    site, it is not compared.

    Args:
        patience: the rule; None: a run never ends early
        file: where the sums of every evaluated round are stored; None: nowhere
    """

    def __init__(self, patience: Patience | None, file: Path | None = None) -> None:
        self.check = StopCheck(patience)
        self._file = file
        self._rounds: dict[int, Mapping[int, GroupCounts]] = {}  # round → site → sums and samples

    def restore(self, is_evaluated: Callable[[int], bool]) -> None:
        """Take the evaluated rounds of an earlier run."""
        if self._file is None or not self._file.exists():
            return
        stored = read_json(self._file)
        with interpreting(self._file):
            for round, by_site in stored["rounds"].items():
                if is_evaluated(int(round)):
                    self._update(int(round), {int(site): _from_json(counts) for site, counts in by_site.items()})

    def record(self, round: int, replies: Mapping[int, GroupCounts]) -> None:
        """Take the sums of an evaluated round by site, and store them."""
        self._update(round, replies)
        if self._file is not None:
            rounds = {
                str(number): {str(site): _to_json(counts) for site, counts in sorted(by_site.items())}
                for number, by_site in self._rounds.items()
            }
            write_json(self._file, {"rounds": rounds})

    def _update(self, round: int, replies: Mapping[int, GroupCounts]) -> None:
        best = self._rounds.get(self.check.best_round)
        self._rounds[round] = replies
        sites = sorted(n for n, counts in replies.items() if counts.total.any() and (best is None or n in best))
        if sites:
            self.check.update(round, _metrics(replies, sites), None if best is None else _metrics(best, sites))
        elif best is None:
            raise InputError(
                f"train.stop needs validation data, and no site that evaluated round {round} has any; use a larger "
                "clients.validation, or remove it"
            )


def _metrics(by_site: Mapping[int, GroupCounts], sites: list[int]) -> dict[str, Metrics]:
    """The metrics over these sites, of the only method."""
    chosen = [by_site[site] for site in sites]
    sums, total = (torch.stack(parts) for parts in zip(*chosen, strict=True))
    return {"": compute_metrics(sums, total)}


def _to_json(counts: GroupCounts) -> dict[str, Any]:
    return {"sums": counts.sums.tolist(), "samples": counts.total.tolist()}


def _from_json(values: Mapping[str, Any]) -> GroupCounts:
    sums, samples = (torch.from_numpy(np.array(values[key])) for key in ("sums", "samples"))
    return GroupCounts(sums, samples)
