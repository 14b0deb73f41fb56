"""FedTilt as a Flower Strategy: the server's side of `plan → descend → settle`."""

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fedtilt.evaluation.results import Summary
from fedtilt.flower.combine_metrics import combine
from fedtilt.flower.membership import Missing, Roster
from fedtilt.flower.messages import (
    Refused,
    Verdict,
    from_arrays,
    hear_update,
    hear_verdict,
    instruct,
    shapes_of,
    to_arrays,
)
from fedtilt.flower.policy import Rules
from fedtilt.flower.run_folder import Ledger
from fedtilt.flower.task import Frame
from fedtilt.methods import Method, check_methods
from fedtilt.models import flat
from fedtilt.rounds.round import invalid_reason, server_update
from fedtilt.rounds.settings import TrainSettings

_log = logging.getLogger("flwr")


class FedTiltStrategy(Strategy):
    """Any `Method` on a Flower federation; works with the sites of `client_app`.

    Sites are numbered 0 to N - 1 and chosen by number as in the simulator. Every reply is checked; one that does not
    fit is refused with a reason, counted by site, and the round goes on as if it had not come. With a `ledger`, every
    round is checkpointed and a new run goes on from there.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        frame: Frame,
        *,
        training: TrainSettings,
        rules: Rules | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_methods([method], training.lr, training.personal_rate)
        self.method, self.training, self.rules, self.ledger = method, training, rules or Rules(), ledger
        self._model, self._frame, self._shapes = model, frame, shapes_of(model)
        self._history = secrets.token_hex(8)
        self._begun = 0  # rounds done before this run
        self._asked: dict[int, int] = {}  # site → node, of the phase under way
        self._received = flat(model)
        parameters = sum(p.numel() for p in model.parameters())
        self.roster = Roster(sites=frame.sites, classes=len(frame.class_names), parameters=parameters, rules=self.rules)
        self.summaries: list[tuple[int, Summary]] = []

    # -- a run -------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train to the last round, from the model's own weights or from the ledger's last checkpoint."""
        w = flat(self._model) if initial_arrays is None else from_arrays(initial_arrays, self._shapes)
        new = self.ledger is None or not self.ledger.is_begun()
        if new:  # where too few sites join, the folder is left to whatever is run after
            self._gather(grid)
        if self.ledger is not None:
            self._begun, w = self.ledger.begin(w, _log.warning)
            self._history = self.ledger.history
            self._recall(self.ledger.known_refusals())
        rounds = num_rounds or self.training.rounds
        if self.ledger is not None and self._begun >= rounds and self.ledger.is_evaluated(self._begun):
            return Result()  # nothing is left to do
        if not new:
            self._gather(grid)
        arrays, seconds = to_arrays(self._model, w), timeout or self.rules.deadline
        self._judge_what_was_left(grid, arrays, seconds)
        return super().start(
            grid, arrays, max(0, rounds - self._begun), seconds, train_config, evaluate_config, evaluate_fn
        )

    def _gather(self, grid: Grid) -> None:
        """Ask the sites to join; where fewer do than the rules want, stop."""
        self.roster.gather(grid)
        sites, joined = self._frame.sites, self.roster.nodes()
        if len(joined) < (needed := self.rules.needed_to_join(sites)):
            lost = {site: self.roster.absence(site) for site in range(sites) if site not in joined}
            raise Missing(
                f"{len(joined)} of {sites} sites joined and {'all' if needed == sites else needed} must "
                f"({_told(lost)}); nothing was trained: mend the sites and run it again",
                sites=lost,
            )

    def _recall(self, refusals: dict[str, dict[str, int]]) -> None:
        for who, reasons in refusals.items():
            for why, count in reasons.items():
                self.roster.refused[who, why] += count

    def _judge_what_was_left(self, grid: Grid, arrays: ArrayRecord, seconds: float) -> None:
        """A run that was stopped between training and judging a round is judged first."""
        if self.ledger is None or not self._begun or self.ledger.is_evaluated(self._begun):
            return
        if self.training.evaluates(self._begun):
            replies = grid.send_and_receive(self._questions(self._begun, arrays), timeout=seconds)
            self._judge(self._begun, replies)

    def summary(self) -> None:
        """Log the settings."""
        _log.info("\t├── method: %s", self.method)
        _log.info("\t├── sites: %d, of which %d are here", self._frame.sites, len(self.roster.nodes()))
        _log.info("\t└── rounds done before: %d of %d", self._begun, self.training.rounds)

    # -- training ----------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the round's sites to train: those of the simulator's selection that are connected."""
        number = self._begun + server_round
        self.roster.update(grid)
        self._received = from_arrays(arrays, self._shapes)
        nodes = self.roster.nodes()
        selected = self.training.selected(number, self._frame.sites)
        self._asked = {site: nodes[site] for site in selected if site in nodes}
        told = {**dict(config), "round": number, "base": number - 1, "history": self._history}
        content = instruct(self._model, self._received, told)
        return [_message(content, node, MessageType.TRAIN, number) for node in self._asked.values()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Settle what arrived and is sound; below the quorum, stop."""
        number = self._begun + server_round
        limit = self.rules.max_samples
        updates, refused = self._read(replies, lambda reply: hear_update(reply, number, self._shapes, limit))
        for site, update in list(updates.items()):
            if why := invalid_reason(update.w, self._received):
                refused[site] = why
                self.roster.refuse(f"site {site}", why)
                del updates[site]
        self._note(number, updates, refused)
        samples = {site: update.samples for site, update in updates.items()}
        models = {site: update.w for site, update in updates.items()}
        w = server_update(self.method, self._received, models, samples).shared
        if self.ledger is not None:
            self.ledger.settled(number, w)
        return to_arrays(self._model, w), MetricRecord({"sites": len(updates), "refused": len(refused)})

    def _note(self, number: int, updates: dict[int, Any], refused: dict[int, str]) -> None:
        """Write down who took part; below the quorum, stop."""
        selected = self.training.selected(number, self._frame.sites)
        silent = {
            site: "did not answer in time" if site in self._asked else self.roster.absence(site)
            for site in selected
            if site not in updates and site not in refused
        }
        for site, why in silent.items():
            self.roster.refuse(f"site {site}", why)
        if self.ledger is not None:
            entry = {
                "selected": selected,
                "entered": sorted(updates),
                "silent": {str(site): why for site, why in sorted(silent.items())},
                "refused": {str(site): why for site, why in sorted(refused.items())},
            }
            self.ledger.took_part(number, entry)
            self.ledger.refused(self.roster.refusals())
        needed = self.rules.needed(len(selected))
        if len(updates) < needed:
            models = "1 sound model" if len(updates) == 1 else f"{len(updates)} sound models"
            raise Missing(
                f"round {number} has {models} of {len(selected)} and needs {needed} ({_told(refused | silent)}); "
                f"the run stops after round {number - 1}: mend the sites and run it again",
                sites=refused | silent,
            )

    # -- judging -----------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all connected sites to judge the models, in the rounds that are judged."""
        number = self._begun + server_round
        return self._questions(number, arrays) if self.training.evaluates(number) else []

    def _questions(self, number: int, arrays: ArrayRecord) -> list[Message]:
        self._asked = self.roster.nodes()
        told: dict[str, int | str] = {"round": number, "history": self._history}
        content = instruct(self._model, from_arrays(arrays, self._shapes), told)
        return [_message(content, node, MessageType.EVALUATE, number) for node in self._asked.values()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the round, from the sites' counts."""
        number = self._begun + server_round
        return self._judge(number, replies) if self.training.evaluates(number) else None

    def _judge(self, number: int, replies: Iterable[Message]) -> MetricRecord:
        classes, limit = len(self._frame.class_names), self.rules.max_samples
        verdicts: dict[int, Verdict]
        verdicts, refused = self._read(replies, lambda reply: hear_verdict(reply, number, classes, limit))
        for site in self._asked:
            if site not in verdicts and site not in refused:
                self.roster.refuse(f"site {site}", "did not judge in time")
        counts, total, summary = combine(verdicts, self._frame.has_outliers, self.method.personal, classes)
        self.summaries.append((number, summary))
        if self.ledger is not None:
            self.ledger.evaluated(number, summary, counts, total)
            self.ledger.refused(self.roster.refusals())
        m = summary.evaluated
        return MetricRecord(
            {"accuracy": m.accuracy, "client-fairness": m.client_fairness, "worst": m.worst, "sites": m.clients,
             "client-data-fairness": list(m.client_data_fairness)}
        )  # fmt: skip

    # -- replies -----------------------------------------------------------------------------------------------------

    def _read(
        self, replies: Iterable[Message], hear: Callable[[Message], Any]
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """What each site said, or why it is refused; a site that answers twice is not believed at all."""
        by_site: dict[int, list[Message]] = {}
        for reply in replies:
            site = self.roster.site(reply.metadata.src_node_id)
            if site is not None and site in self._asked:
                by_site.setdefault(site, []).append(reply)
            elif site is not None or not reply.has_error():  # the SuperLink's own errors tell of silent sites
                who = f"node {reply.metadata.src_node_id}" if site is None else f"site {site}"
                self.roster.refuse(who, "was not asked")
        heard, refused = {}, {}
        for site, messages in sorted(by_site.items()):
            try:
                if len(messages) > 1:
                    raise Refused(f"answered {len(messages)} times")
                heard[site] = hear(messages[0])
            except Refused as why:
                refused[site] = str(why)
                self.roster.refuse(f"site {site}", str(why))
        return heard, refused


def _told(lost: Mapping[int, str]) -> str:
    return "; ".join(f"site {site} {why}" for site, why in sorted(lost.items()))


def _message(content: RecordDict, node: int, kind: str, number: int) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(number))
