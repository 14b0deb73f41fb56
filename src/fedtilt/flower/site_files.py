"""The files of a site, which never leave it: its state of every round, such as its personal model, and its report.

STATE/FEDERATION/METHOD/seed-0/site-00003/1f0c…/round-00007.safetensors

Beside the rounds, site-00003/ has what `fedtilt export` needs of the site's model: fingerprint.json, model.json,
evaluation.json and others, as the folder of a simulated run has them.

The folder `1f0c…` is the id of the server's training history: a resumed run continues in it, a federation that starts
over or goes back to an earlier round gets a new one, and older folders stay. A site keeps its state of every round that
the server can go back to. Files are written atomically, and have a digest.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtilt.auditing.samples import audit_samples, suspects_csv
from fedtilt.data import Federation
from fedtilt.data.groups import in_words
from fedtilt.engine.client_states import ClientStates
from fedtilt.errors import InputError
from fedtilt.evaluation.scores import scores_of
from fedtilt.files import interpreting, read_tensors, write_bytes, write_json, write_tensors
from fedtilt.flower.evaluation import EvaluationReply
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.state import ClientState
from fedtilt.storage.evaluations import rounds_in

_KEPT = {"personal": "personal model", "local": "local parameters", "buffers": "buffers"}


class DamagedState(InputError):
    """A state that cannot be used: its file is damaged, or of another model."""


class SiteState(NamedTuple):
    """The state of a site after one round."""

    round: int
    path: Path

    def read(self, expected: ClientState) -> ClientState:
        """A state with the names, shapes and types of `expected`, or a `DamagedState`.

        A file that cannot be read at all may be intact, and is an `InputError`.
        """
        try:
            tensors = read_tensors(self.path)
            with interpreting(self.path):
                state = ClientState.from_tensors(tensors)
        except InputError as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise DamagedState(self._restart(str(error))) from error
        model = state.without_slot("audit")  # which is by sample
        if (found := _describe(model)) != (wanted := _describe(expected)):
            raise DamagedState(self._restart(f"{self.path} is of another model: it has {found} instead of {wanted}"))
        return state

    def _restart(self, reason: str) -> str:
        return f"the state of this site after round {self.round} starts again from the shared model: {reason}"


class SiteStates:
    """The states of one site in one training history."""

    def __init__(self, folder: Path, history: TrainingHistory) -> None:
        self._parent, self._history = folder, history
        self.folder = folder / history.id

    def rounds(self) -> list[int]:
        """The rounds of this history with a stored state, oldest first."""
        return list(rounds_in(self.folder, r"\.safetensors").values())

    def path(self, round: int) -> Path:
        """The file of one round."""
        return self.folder / f"round-{round:05d}.safetensors"

    def current(self, base_round: int, used_round: int | None = None) -> SiteState | None:
        """The last state at `base_round`, the round that the server's w came from; None before the first round.

        States after `used_round` do not count: the updates of those rounds did not reach the server, so that its state
        does not fit them. Nor does the state of a round that the server never aggregated (it was killed and repeats
        that round). In a history that started from another one, that one's states count up to that round.
        """
        rounds = self.rounds()
        if rounds and rounds[-1] > base_round + 1:
            raise InputError(
                f"the server went back to round {base_round}, and this site has trained round {rounds[-1]} since "
                f"({self.folder}); start the run with --back-to {base_round}, so that the sites go back too"
            )
        last = base_round if used_round is None else min(base_round, used_round)
        for id, until in [(self._history.id, last), *reversed(self._history.earlier)]:
            folder, last = self._parent / id, min(last, until)
            stored = [(round, path) for path, round in rounds_in(folder, r"\.safetensors").items() if round <= last]
            if stored:
                return SiteState(*stored[-1])
        return None

    def save(self, round: int, used_round: int, state: ClientState, keep: Collection[int] = ()) -> None:
        """Save the state of a round, and delete those after `used_round` and those that the server cannot go back to.

        It can go back to the rounds in `keep` and, if this update does not reach it, to `used_round`.
        """
        write_tensors(self.path(round), state.to_tensors())
        rounds = self.rounds()
        used = [r for r in rounds if r <= used_round]
        needed = {max((r for r in used if r <= kept), default=round) for kept in {used_round, *keep}}
        for stored in rounds:
            if stored not in needed and stored != round:
                self.path(stored).unlink()


def _describe(state: ClientState) -> str:
    """Names, shapes and types in one line."""
    tensors = sorted(state.to_tensors().items())
    return ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors) or "nothing"


# -- reports ---------------------------------------------------------------------------------------------------------


def write_site_report(
    folder: Path, round: int, class_names: Sequence[str], reply: EvaluationReply, history: TrainingHistory, *,
    kept: Sequence[str], file: Path | None, damage: str | None = None,
) -> None:  # fmt: skip
    """Write report.json and report.txt of one round: scores of the site's models by class or range of the target.

    `kept` are the names of the tensors in the site's state, such as "personal", in `file`; `damage` is why the site
    starts again without its state. The id of the history tells the reports of different runs apart.
    """
    score = scores_of(reply.shared)[0]
    group = {"accuracy": "class", "mae": "range"}.get(score.name, "samples of")

    def row(name: str, part: slice) -> dict[str, Any]:
        samples = reply.total[part].sum()
        shared, personal = (
            None if sums is None or not samples else float(score.values(sums[part].sum(0), samples))
            for sums in (reply.shared, reply.personal)
        )
        return {group: name, "samples": int(samples), "shared": shared, "personal": personal}

    rows = [row(class_names[k], slice(k, k + 1)) for k in range(len(reply.total)) if reply.total[k]]
    all_classes = row("all", slice(None))
    stored = None if file is None else str(file)
    report = {
        "round": round, "history": history.id, score.name: all_classes, in_words(group): rows, "kept": list(kept),
        "file": stored, **({} if damage is None else {"damage": damage}),
    }  # fmt: skip
    write_json(folder / "report.json", report)
    width = max(len(group), *(len(str(row[group])) for row in [*rows, all_classes]))
    unit = f" in {score.unit}" if score.unit else ""
    lines = [f"round {round}: {score.title}{unit} on this site's test data", ""]
    lines += [f"{group:<{width}}  {'samples':>8}  {'shared':>7}  {'personal':>8}"]
    for entry in [*rows, all_classes]:
        shared, personal = ("-" if entry[k] is None else f"{entry[k]:.1f}" for k in ("shared", "personal"))
        lines.append(f"{entry[group]:<{width}}  {entry['samples']:>8}  {shared:>7}  {personal:>8}")
    what = ", ".join(_KEPT[name] for name in kept if name in _KEPT)
    lines += ["", damage or f"kept on this site: {f'{what} in {stored}' if stored else 'nothing'}", ""]
    write_bytes(folder / "report.txt", "\n".join(lines).encode())


def write_suspects(folder: Path, federation: Federation, site: int, method: str, state: ClientState) -> int:
    """Write suspects.csv, the samples of the site whose labels look wrong; returns how many there are."""
    states = ClientStates()
    states.put((method, site), 0, state)
    suspects = audit_samples(method, states, federation).suspects()
    write_bytes(folder / "suspects.csv", suspects_csv(suspects).encode())
    return len(suspects)
