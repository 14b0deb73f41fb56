"""FedTilt as a Flower Strategy: the server's side of a round."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.root_set import RootSet, RootUpdate
from fedtilt.engine.server import ServerUpdate, server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import check_server, initial_server, messages_of
from fedtilt.engine.updates import invalid_updates
from fedtilt.errors import InputError
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.flower.early_stop import SiteStopCheck
from fedtilt.flower.evaluation import EvaluationReply, combine_replies, decode_evaluation_reply
from fedtilt.flower.membership import Membership, MissingSitesError, SiteKeys
from fedtilt.flower.message_fields import RejectedReply, decode_model, encode_model
from fedtilt.flower.messages import decode_train_reply, encode_instruction, for_site
from fedtilt.flower.policy import RoundPolicy
from fedtilt.flower.run_folder import ServerRunFolder
from fedtilt.flower.task import FederationInfo
from fedtilt.flower.training_history import JumpCheck, TrainingHistory
from fedtilt.methods import Method, check_bad_share
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.storage.releases import Releases
from fedtilt.toml_text import format_toml

_log = logging.getLogger("flwr")
_MOST_TESTS = 100  # test samples of a site for each of its training samples, and validation samples


class _EarlyEnd(Exception):
    """Leaves Flower's loop over rounds before the last."""


class SiteStrategy(Strategy):
    """Any `Method` on a Flower federation; works with the sites of `client_app`.

    Sites are numbered 0 to N - 1 and selected by number as in the simulator. Every reply is checked; an invalid one is
    rejected with a reason and counted, and the round continues without it.

    Args:
        method: the method to train
        parts: the parts of the model and its initial values
        info: what the server knows about the sites
        settings: the training settings
        net: the model, for a method with `training`
        policy: quorum, deadlines and limits
        run_folder: where to checkpoint every round and resume from; None: nowhere
        site_keys: the site of each public key; see `Membership`
        root: the root set of a rule that needs one, and the backend that trains on it
    """

    def __init__(
        self, method: Method, parts: Parts, info: FederationInfo, *, settings: TrainSettings,
        net: nn.Module | None = None, policy: RoundPolicy | None = None, run_folder: ServerRunFolder | None = None,
        site_keys: SiteKeys | None = None, root: tuple[RootSet, str] | None = None,
    ) -> None:  # fmt: skip
        settings.check_methods([method])
        settings.check_left_out(info.left_out)
        if settings.stop is not None and settings.stop.restore_best and run_folder is None:
            raise InputError("restore_best = True of stop needs a run folder; give run_folder, or leave it out")
        check_bad_share([method], settings.clients_per_round(info.sites))
        self.method, self.settings, self.policy, self.run_folder = method, settings, policy or RoundPolicy(), run_folder
        self._parts, self._info, self._net, self._root = parts, info, net, root
        population = info.sites - len(info.left_out)
        self._messages = messages_of(method, parts, population, net)
        self._history = TrainingHistory.new()
        self._rounds_before = self._rounds_done = 0  # rounds done before this run, and until now
        self._requested: dict[int, int] = {}  # site → node, of the requests in flight
        self._selected: list[int] = []  # sites that take part in this round
        self._used = dict.fromkeys(range(info.sites), 0)  # site → the last round with an update that reached the server
        self._mechanism = GaussianMechanism.of(settings, info.sites, parts)
        self._training_samples: dict[int, int | float] = {}  # of sites, in their last round
        self._releases = Releases(None)
        self._server = initial_server(method, parts, population, net)
        self._jumps = JumpCheck(settings.screen or 0.0, 0, self._server.parameters)
        self.membership = Membership(
            sites=info.sites, classes=len(info.class_names), parts=parts, policy=self.policy, site_keys=site_keys,
            left_out=info.left_out, schema=info.schema,
            personal_start="last" if method.personal is None else method.personal.start,
        )  # fmt: skip
        self.summaries: list[tuple[int, RoundMetrics]] = []
        self._samples: dict[tuple[int | None, str], Tensor] = {}  # (site, split) → its samples, in its first evaluation
        self._stop = SiteStopCheck(settings.stop, None if run_folder is None else run_folder.validation_file)

    # -- a run -------------------------------------------------------------------------------------------------------

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int | None = None,
        timeout: float | None = None, train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Train to the last round, from the model's weights or from the last checkpoint of the run folder."""
        if initial_arrays is not None:
            self._server = replace(decode_model(initial_arrays, self._parts), slots=self._server.slots)
        folder = self.run_folder
        waits_first = True  # before the folder is changed: if too few sites join, it stays as it is
        if folder is not None:
            folder.check_back_to()
            waits_first = not folder.has_run() or folder.back_to is not None
        if waits_first:
            self.membership.wait_and_join(grid)
        if folder is not None:
            needed = self._server
            self._rounds_before, self._server = folder.begin(needed, _log.warning)
            self._rounds_done = self._rounds_before
            self._used = folder.used_rounds(self._rounds_before)
            check_server(self.method, self._server, needed)
            self._history = folder.history
            k = self.settings.screen or 0.0
            self._jumps = folder.jump_check(k, self._rounds_before, self._server, _log.warning)
            self.membership.add_rejections(folder.rejections())
            self._stop.restore(folder.is_evaluated)
        rounds = num_rounds or self.settings.rounds
        if self._mechanism is not None:
            self._limit_rounds(self._mechanism)
            rounds = min(rounds, self.settings.rounds)
        seconds = timeout or self.policy.deadline
        is_evaluated = folder is not None and folder.is_evaluated(self._rounds_before)
        if folder is not None and is_evaluated and folder.end_reason(self._rounds_before, rounds) is not None:
            if self._stop.check.kept_round is not None and not folder.has_results():
                self.membership.wait_and_join(grid)
                self._go_back_to_best(grid, folder, self._rounds_before, seconds)
            return Result()  # the run has ended early
        if is_evaluated and self._is_last(rounds) and self._stop.check.kept_round in (None, self._rounds_before):
            self._end(grid, rounds, seconds)
            return Result()  # the run is finished
        if not waits_first:
            self.membership.wait_and_join(grid)
        arrays = self._encoded_model()
        if self._rounds_before and not is_evaluated and self.settings.evaluates(self._rounds_before):
            # the previous run stopped between the training and the evaluation of its last round
            replies = grid.send_and_receive(self._evaluation_requests(self._rounds_before, arrays), timeout=seconds)
            self._record_evaluation(self._rounds_before, replies)
        left = 0 if self._is_last(rounds) else rounds - self._rounds_before
        try:
            result = super().start(grid, arrays, left, seconds, train_config, evaluate_config, evaluate_fn)
        except _EarlyEnd:
            result = Result()
        self._end(grid, rounds, seconds)
        result.arrays = self._encoded_model()
        return result

    def _is_last(self, rounds: int) -> bool:
        return self._rounds_done >= rounds or self._stop.check.is_over

    def _end(self, grid: Grid, rounds: int, seconds: float) -> None:
        """Record an early end; with `restore_best`, go back to the best round first."""
        ending = self._stop.check.ending(self._rounds_done, rounds)
        if ending is None:
            return
        if self.run_folder is not None:
            self.run_folder.record_end(*ending)  # a server that is killed below does not train the last rounds again
            if ending.round < self._rounds_done:
                self._go_back_to_best(grid, self.run_folder, ending.round, seconds)
        _log.info("%s", ending.reason)

    def _go_back_to_best(self, grid: Grid, folder: ServerRunFolder, round: int, seconds: float) -> None:
        """Ask all sites to evaluate the best round again, so that their reports and exports have its models."""
        state = folder.go_back(round, _log.warning)
        self._server, self._history = state.server[self.method.name], folder.history
        self._used = folder.used_rounds(round)
        replies = grid.send_and_receive(self._evaluation_requests(round, self._encoded_model()), timeout=seconds)
        accepted, _, _ = self.membership.collect(
            "evaluate", self._requested, self._requested, replies, partial(self._decode_evaluation, round)
        )
        for site in range(self._info.sites):
            if site not in accepted and site not in self._info.left_out:
                _log.warning(
                    "site %d has not evaluated round %d again: its report and export are of a later round", site, round
                )

    def _encoded_model(self) -> ArrayRecord:
        return encode_model(self._parts, self._server.parameters, self._server.buffers)

    def _limit_rounds(self, mechanism: GaussianMechanism) -> None:
        """Stop where the budget of privacy ends; a round that was repeated after a damaged checkpoint counts again."""
        done = self._rounds_before
        self._releases = Releases(None if self.run_folder is None else self.run_folder.privacy_file, done)
        self.settings, notices = mechanism.within_budget(self.settings, done=done, releases=self._releases.count)
        for notice in notices:
            _log.warning("%s", notice)

    def summary(self) -> None:
        """Log the settings."""
        _log.info("\t├── method: %s %s", self.method.name, format_toml(self.method.to_table()))
        _log.info("\t├── sites: %d, of which %d have joined", self._info.sites, len(self.membership.nodes()))
        _log.info("\t└── rounds done before: %d of %d", self._rounds_before, self.settings.rounds)

    # -- training ----------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the selected sites that are connected to train."""
        round = self._rounds_before + server_round
        self.membership.refresh(grid)
        nodes = self.membership.nodes()
        self._selected = self.settings.selected(round, self._info.sites, self._info.left_out)
        self._requested = {site: nodes[site] for site in self._selected if site in nodes}
        keep = [round - 1] if self.run_folder is None else self.run_folder.kept_rounds()
        values = {**dict(config), "round": round, "base-round": round - 1, "keep": keep}
        content = encode_instruction(
            self._parts, self._server, values, self._history, self._info.schema, self._messages.to_clients
        )
        return self._requests(content, MessageType.TRAIN, round)

    def _requests(self, content: RecordDict, kind: str, round: int) -> list[Message]:
        return [
            Message(for_site(content, self._used[site]), dst_node_id=node, message_type=kind, group_id=str(round))
            for site, node in self._requested.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the valid models; below the quorum, stop."""
        round = self._rounds_done = self._rounds_before + server_round
        if not self._selected:  # all of them have left: the model stays as it is
            self._record_participation(round, {}, {}, {})
            if self.run_folder is not None:
                self.run_folder.save_checkpoint(round, self._server, self._stop.check.kept_round)
            return self._encoded_model(), None
        accepted, rejected, missing = self.membership.collect(
            "train", self._selected, self._requested, replies,
            lambda r: decode_train_reply(r, round, self._parts, self.policy.max_samples, self._messages.to_server),
        )  # fmt: skip
        for site, reason in invalid_updates(self.method, accepted, self._server).items():
            rejected[site] = reason
            self.membership.reject(f"site {site}", reason)
            del accepted[site]
        self._record_participation(round, accepted, rejected, missing)
        self._training_samples |= {site: update.samples for site, update in accepted.items()}
        mechanism = self._mechanism and self._mechanism.for_round(round)
        updated = server_update(
            self.method, self._server, accepted, self.settings, mechanism, selected=len(self._selected), round=round,
            clients=self._info.sites, left_out=self._info.left_out, root=self._root_model(round),
        )  # fmt: skip
        if mechanism is not None:
            self._releases.add()
        self._record_screening(round, updated)
        change = self._jumps.check(round, self._server.parameters, updated.state.parameters)
        self._server = updated.state
        self._used |= dict.fromkeys(accepted, round)
        if self.run_folder is not None:
            self.run_folder.record_change(round, change)
            self.run_folder.save_checkpoint(round, self._server, self._stop.check.kept_round)
        if change.jump is not None:
            _log.warning("round %d: %s", round, change.jump)
        metrics = {"sites": len(accepted), "rejected": len(rejected), "jumped": int(change.jump is not None)}
        return self._encoded_model(), MetricRecord({**metrics, "change": change.length})

    def _root_model(self, round: int) -> RootUpdate | None:
        """What a client's round on the root set gives, if there is one."""
        if self._root is None:
            return None
        assert self._net is not None
        root, backend = self._root
        return root.train(
            self.method, self._server, net=self._net, parts=self._parts, settings=self.settings, backend=backend,
            round=round,
        )  # fmt: skip

    def _record_screening(self, round: int, updated: ServerUpdate) -> None:
        """Name the sites whose updates were rejected or bounded because they stand out."""
        for site, reason in sorted({**updated.bounded, **updated.rejected}.items()):
            _log.warning("round %d: site %d %s", round, site, reason)
            self.membership.reject(f"site {site}", reason.partition(" (")[0])
        if self.run_folder is not None and (updated.bounded or updated.rejected):
            self.run_folder.record_rejections(self.membership.rejections())

    def _record_participation(
        self, round: int, accepted: Mapping[int, ClientUpdate], rejected: Mapping[int, str], missing: Mapping[int, str]
    ) -> None:
        """Record which sites took part; below the quorum of those that were selected, stop."""
        if self.run_folder is not None:
            entry = {
                "selected": self._selected,
                "accepted": sorted(accepted),
                "missing": {str(site): reason for site, reason in sorted(missing.items())},
                "rejected": {str(site): reason for site, reason in sorted(rejected.items())},
            }
            suspects = {str(n): int(u.declared["suspects"]) for n, u in accepted.items() if "suspects" in u.declared}
            if suspects:  # declared by sites that may
                entry["suspects"] = suspects
            self.run_folder.record_rejections(self.membership.rejections(), {round: entry})
        required = self.policy.required_models(len(self._selected))
        if self._selected and len(accepted) < required:
            models = "1 valid model" if len(accepted) == 1 else f"{len(accepted)} valid models"
            raise MissingSitesError(
                f"round {round} has {models} of {len(self._selected)} and needs {required}",
                {**rejected, **missing},
                f"the run stops after round {round - 1}",
            )

    # -- evaluation --------------------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask all connected sites to evaluate, in the rounds that are evaluated."""
        round = self._rounds_before + server_round
        return self._evaluation_requests(round, arrays) if self.settings.evaluates(round) else []

    def _evaluation_requests(self, round: int, arrays: ArrayRecord) -> list[Message]:
        self._requested = self.membership.nodes()
        model = decode_model(arrays, self._parts)
        content = encode_instruction(self._parts, model, {"round": round}, self._history, self._info.schema)
        return self._requests(content, MessageType.EVALUATE, round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the round, from the sites' counts."""
        round = self._rounds_before + server_round
        if not self.settings.evaluates(round):
            return None
        metrics = self._record_evaluation(round, replies)
        if self._stop.check.is_over:
            raise _EarlyEnd
        return metrics

    def _decode_evaluation(self, round: int, reply: Message) -> EvaluationReply:
        """Decode a reply; test and validation samples that are not those of the site's first evaluation are rejected.

        So are many times more than its training samples, unless these are sums of weights.
        """
        decoded = decode_evaluation_reply(
            reply, round, len(self._info.class_names), self.policy.max_samples, self._info.target,
            has_validation=self.settings.stop is not None,
        )  # fmt: skip
        site = self.membership.site_of(reply.metadata.src_node_id)
        training = None if site is None else self._training_samples.get(site)
        totals = {"test": decoded.total} | ({"validation": decoded.validation.total} if decoded.validation else {})
        for split, total in totals.items():
            now = int(total.sum())
            if isinstance(training, int) and now > _MOST_TESTS * training:
                raise RejectedReply(f"claims {now} {split} samples, and {training} training samples")
            first = self._samples.setdefault((site, split), total)
            if not torch.equal(first, total):
                raise RejectedReply(f"claims {now} {split} samples and had {int(first.sum())} before, or other classes")
        return decoded

    def _record_evaluation(self, round: int, replies: Iterable[Message]) -> MetricRecord:
        classes = len(self._info.class_names)
        accepted, rejected, missing = self.membership.collect(
            "evaluate", self._requested, self._requested, replies, partial(self._decode_evaluation, round)
        )
        for site, reason in sorted({**rejected, **missing}.items()):
            _log.warning("round %d: the results are without site %d, which %s", round, site, reason)
        counts, total, summary = combine_replies(
            accepted, self._info.has_outliers, self.method.has_personal, classes, self._info.drawn.fixed_shares
        )
        if self._mechanism is not None:
            summary = summary._replace(privacy=self._mechanism.loss(self._releases.count))
        self.summaries.append((round, summary))
        if self.settings.stop is not None:  # before the evaluation is recorded: a resumed run needs it
            self._stop.record(round, {site: r.validation for site, r in accepted.items() if r.validation is not None})
        if self.run_folder is not None:
            self.run_folder.record_evaluation(round, summary, counts, total)
            self.run_folder.record_declared(round, {site: reply.declared for site, reply in accepted.items()})
            self.run_folder.record_rejections(self.membership.rejections())
        metrics = summary.evaluated
        return MetricRecord(
            {
                **{found.score: found.mean for found in (metrics, *metrics.others)},
                "client-fairness": metrics.client_fairness,
                **({} if (spread := metrics.client_data_fairness) is None else {"client-data-fairness": list(spread)}),
                "worst": metrics.worst,
                "sites": metrics.clients,
                **({} if summary.privacy is None else summary.privacy._asdict()),
            }
        )
