"""Every invalid reply is rejected, counted, and changes nothing."""

import dataclasses
import io
import json
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from torch import Tensor

import fedtilt as ft
from fedtilt import report
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import Diverged
from fedtilt.files import read_json
from fedtilt.flower import RoundPolicy, SiteStrategy
from fedtilt.flower.membership import Membership
from fedtilt.flower.message_fields import decode_model, encode_model
from fedtilt.flower.messages import encode_failure, encode_join_reply, encode_train_reply
from fedtilt.flower.task import FederationInfo
from fedtilt.parts import Parts
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

PARTS = Parts.of(ft.models.mlp((4,), 3, hidden=(5,)), (4,))
P = len(PARTS.initial)
NOT_ALLOWED = "does not run this project: its operator has not allowed it; see its log"
UNNUMBERED = "has not joined; node 102, which does not give its site number,"
INFO = FederationInfo((4,), ("a", "b", "c"), ("0", "1", "2"), torch.zeros(3, dtype=torch.bool))


class ThreeNodes:
    """A grid of three connected nodes that join."""

    def get_node_ids(self) -> list[int]:
        return [100, 101, 102]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.get_node_ids()]

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        return [Message(encode_join_reply(m.metadata.dst_node_id - 100, 3, PARTS), reply_to=m) for m in messages]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.late_replies = self.send_and_receive(messages)
        return [str(n) for n in range(len(self.late_replies))]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return self.late_replies


def trained_model(site: int) -> Tensor:
    return PARTS.initial + site + 1


def round_one(
    method: ft.Method | None = None, policy: RoundPolicy | None = None, participation: float = 1.0
) -> tuple[SiteStrategy, dict[int, Message], dict[int, Message]]:
    """A strategy that waits for the replies of round 1; its messages and valid replies, by site."""
    settings = TrainSettings(participation=participation, rounds=1)
    method = method or ft.fedavg(weighting="samples")
    strategy = SiteStrategy(method, PARTS, INFO, settings=settings, policy=policy)
    grid = ThreeNodes()
    strategy.membership.wait_and_join(grid)
    arrays = encode_model(PARTS, PARTS.initial)
    messages = {m.metadata.dst_node_id - 100: m for m in strategy.configure_train(1, arrays, ConfigRecord(), grid)}
    replies = {site: train_reply(site, 10 + site, message) for site, message in messages.items()}
    return strategy, messages, replies


def train_reply(site: int, samples: int, message: Message) -> Message:
    return Message(encode_train_reply(PARTS, ClientUpdate(trained_model(site), samples), 1), reply_to=message)


def aggregate_without(site: int) -> ArrayRecord:
    strategy, _, replies = round_one()
    return strategy.aggregate_train(1, [reply for n, reply in replies.items() if n != site])[0]


def set_metrics(**values: object) -> Callable[[RecordDict], None]:
    return lambda content: content["metrics"].update(values)


def drop_record(key: str) -> Callable[[RecordDict], None]:
    return lambda content: content.pop(key)


def set_array(value: object) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        name = "1.bias"
        content["arrays"][name] = value if isinstance(value, Array) else Array(value)  # type: ignore[arg-type]

    return change


def set_model(w: Tensor) -> Callable[[RecordDict], None]:
    return lambda content: content.update(arrays=encode_model(PARTS, w))


def npy_bytes(value: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as `np.save` writes it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, value, version)
    return buffer.getvalue()


def with_header(text: bytes) -> bytes:
    """Five numbers after a header with this text."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(20)


FIVE = np.arange(5, dtype=np.float32)
INVALID = {
    "is not finite": set_model(torch.full((P,), math.nan)),
    "is not finite ": set_model(PARTS.initial.index_fill(0, torch.tensor([3]), math.inf)),
    "has shape (4,) instead of (5,) in '1.bias'": set_array(np.zeros(4, np.float32)),
    "has shape () instead of (5,) in '1.bias'": set_array(np.zeros((), np.float32)),
    "has shape (1,) instead of (5,) in '1.bias'": set_array(np.zeros(1, np.float32)),
    "has shape (274877906944,) instead": set_array(Array("float32", (2**38,), "numpy.ndarray", npy_bytes(FIVE))),
    "has shape (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,… instead of (5,) in '1.bias'": set_array(
        Array("float32", (0,) * 9999, "numpy.ndarray", npy_bytes(FIVE))
    ),
    "has type float64 instead of float32 in '1.bias'": set_array(np.zeros(5)),
    "has type int32 instead of float32 in '1.bias'": set_array(np.zeros(5, np.int32)),
    "has type a\\n" + "b" * 36 + "… instead of float32 in '1.bias'": set_array(
        Array("a\n" + "b" * 9999, (5,), "numpy.ndarray", npy_bytes(FIVE))
    ),
    "has a parameter that cannot be read": set_array(Array("float32", (5,), "pickle", npy_bytes(FIVE))),
    "has other parameters: 0 are missing and 1 are unknown": lambda c: c["arrays"].update(
        more=Array(np.zeros(1, np.float32))
    ),
    "has other parameters: 1 are missing and 0 are unknown": lambda c: c["arrays"].pop("1.bias"),
    "has no model": drop_record("arrays"),
    "has no metrics": drop_record("metrics"),
    "is of round 0 instead of 1": set_metrics(round=0),
    "is of round 7 instead of 1": set_metrics(round=7),
    "has a value of round that is not a whole number": set_metrics(round=1.0),
    "has num-examples = -5, which is not between 0 and 10000000": set_metrics(**{"num-examples": -5}),
    "has num-examples = 0, which is not between 0 and 10000000": set_metrics(**{"num-examples": 0}),
    "has num-examples = 1000000000000, which is not between 0 and 10000000": set_metrics(**{"num-examples": 10**12}),
    "has num-examples = nan, which is not between 0 and 10000000": set_metrics(**{"num-examples": float("nan")}),
}


UNREADABLE = {  # sent as an array of five numbers; numpy raises TokenError or MemoryError on some of these headers
    "empty": b"",
    "garbage": b"garbage",
    "a header that does not end": with_header(b"("),
    "a header that is too deep": with_header(b"-" * 9000 + b"1"),
    "a header of a terabyte": with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % (2**38)),
    "a header of another length": with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }"),
    "no header": bytes(len(npy_bytes(FIVE))),
    "a header alone": npy_bytes(FIVE)[:-20],
    "a number short": npy_bytes(FIVE[:4]).replace(b"(4,)", b"(5,)"),
    "a byte short": npy_bytes(FIVE)[:-1],
    "a byte over": npy_bytes(FIVE) + b"\0",
    "a number over": npy_bytes(FIVE) + bytes(4),
    "other magic": b"\x94" + npy_bytes(FIVE)[1:],
    "another version": npy_bytes(FIVE, (2, 0)),
    "another shape": npy_bytes(FIVE.reshape(5, 1)),
    "another type of the same size": npy_bytes(FIVE.astype(np.int32)),
    "another order of bytes": npy_bytes(FIVE.astype(">f4")),
    "another order of rows": npy_bytes(FIVE).replace(b"False,", b"True, "),
    "objects": npy_bytes(np.array([{"a": 1}] * 5, dtype=object)),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_arrays_are_rejected(case: str) -> None:
    value = Array("float32", (5,), "numpy.ndarray", UNREADABLE[case])
    check_only_site_1_is_rejected(set_array(value), "has a parameter that cannot be read")


def test_arrays_that_flower_sends_are_read() -> None:
    shapes = {"scalar": (), "none": (0,), "flat": (3, 0, 2), "one": (1, 7, 1), "image": (2, 3, 4, 5), "long": (99_999,)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    vector = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    parts = dataclasses.replace(Parts.plain(vector), trained=shapes)
    assert torch.equal(decode_model(ArrayRecord(tensors), parts).parameters, vector)


@pytest.mark.parametrize("reason", INVALID)
def test_an_invalid_reply_is_left_out_of_the_round(reason: str) -> None:
    check_only_site_1_is_rejected(INVALID[reason], reason.strip())


def check_only_site_1_is_rejected(tamper: Callable[[RecordDict], None], reason: str) -> None:
    """Tamper with the reply of site 1: only that is rejected, for this reason, and the others are averaged."""
    strategy, _, replies = round_one()
    tamper(replies[1].content)
    arrays, metrics = strategy.aggregate_train(1, replies.values())
    assert equal(arrays, aggregate_without(1))
    ((sender, reasons),) = strategy.membership.rejections().items()
    assert sender == "site 1"
    assert list(reasons.values()) == [1]
    assert next(iter(reasons)).startswith(reason)
    assert (metrics["sites"], metrics["rejected"], metrics["jumped"]) == (2, 1, 0)


def equal(a: ArrayRecord, b: ArrayRecord) -> bool:
    return all(np.array_equal(a[name].numpy(), b[name].numpy()) for name in {*a, *b})


def test_a_robust_rule_stays_robust_if_replies_are_missing() -> None:
    rule = ft.fedavg(aggregator={"rule": "trimmed_mean", "bad_share": 0.34})  # one of the three sites
    strategy, _, replies = round_one(rule)
    with pytest.raises(ft.InputError, match="2 of 3 models can be aggregated, and trimmed_mean .* needs 3"):
        strategy.aggregate_train(1, [replies[0], replies[1]])
    strategy, _, replies = round_one(rule)
    set_model(torch.full((P,), 1e30))(replies[1].content)
    arrays, _ = strategy.aggregate_train(1, replies.values())
    assert equal(arrays, encode_model(PARTS, trained_model(2)))  # the median of sites 0, 2 and 1


def test_errors_duplicates_unknown_nodes_and_missing_replies() -> None:
    strategy, messages, replies = round_one()
    failed = Message(Error(code=2, reason="secret"), reply_to=messages[1])
    assert equal(strategy.aggregate_train(1, [replies[0], failed, replies[2]])[0], aggregate_without(1))
    assert strategy.membership.rejections() == {"site 1": {"failed; see its log": 1}}

    strategy, _, replies = round_one()
    assert equal(strategy.aggregate_train(1, [replies[1], *replies.values()])[0], aggregate_without(1))
    assert strategy.membership.rejections() == {"site 1": {"replied 2 times": 1}}

    strategy, messages, replies = round_one()
    to_unknown_node = Message(RecordDict(), dst_node_id=999, message_type="train")
    strategy.aggregate_train(1, [*replies.values(), train_reply(9, 10, to_unknown_node)])
    assert strategy.membership.rejections() == {"node 999": {"replied without a request": 1}}

    strategy, _, replies = round_one()
    strategy.aggregate_train(1, [replies[0], replies[2]])
    assert strategy.membership.rejections() == {"site 1": {"did not reply in time": 1}}


def test_a_site_that_was_not_selected_is_left_out() -> None:
    strategy, messages, replies = round_one(participation=0.67)
    (left_out,) = {0, 1, 2} - messages.keys()
    message = Message(RecordDict(), dst_node_id=100 + left_out, message_type="train")
    arrays, metrics = strategy.aggregate_train(1, [*replies.values(), train_reply(left_out, 10, message)])
    assert equal(arrays, aggregate_without(left_out))
    assert (metrics["sites"], metrics["rejected"]) == (2, 0)
    assert strategy.membership.rejections() == {f"site {left_out}": {"replied without a request": 1}}


def test_the_order_of_arrival_does_not_matter() -> None:
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        strategy, _, replies = round_one()
        results.append(strategy.aggregate_train(1, [replies[n] for n in order])[0])
    assert equal(*results)


def test_below_quorum_the_round_is_not_aggregated() -> None:
    strategy, _, replies = round_one(policy=RoundPolicy(quorum=1.0))
    replies[1].content["metrics"]["round"] = 9
    with pytest.raises(ft.InputError) as error:
        strategy.aggregate_train(1, replies.values())
    assert str(error.value) == (
        "round 1 has 2 valid models of 3 and needs 3 (site 1 is of round 9 instead of 1); "
        "the run stops after round 0: fix the sites and run it again"
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (encode_join_reply(7, 3, PARTS), "has site = 7, outside 0 to 2"),
        (encode_join_reply(0, 4, PARTS), "has 4 classes instead of 3"),
        (encode_join_reply(0, 3, Parts.plain(torch.zeros(1))), f"has 1 parameters instead of {P}"),
        (RecordDict({"metrics": MetricRecord({"site": 0.5})}), "has a value of site that is not a whole number"),
        (RecordDict(), "has no metrics"),
    ],
)
def test_a_node_with_another_model_or_number_cannot_join(reply: RecordDict, reason: str) -> None:
    strategy, _, _ = round_one()
    strategy.membership.admit([Message(reply, reply_to=Message(RecordDict(), dst_node_id=55, message_type="query"))])
    assert strategy.membership.rejections() == {"node 55": {f"cannot join: {reason}": 1}}
    assert strategy.membership.nodes() == {0: 100, 1: 101, 2: 102}


def test_a_node_cannot_take_the_number_of_another_site() -> None:
    strategy, _, _ = round_one()
    request = Message(RecordDict(), dst_node_id=55, message_type="query")
    strategy.membership.admit([Message(encode_join_reply(0, 3, PARTS), reply_to=request)])
    assert strategy.membership.nodes()[0] == 100
    assert strategy.membership.rejections() == {"node 55": {"cannot join: another node is site 0": 1}}


def test_two_new_nodes_that_claim_the_same_site_are_both_rejected() -> None:
    membership = Membership(sites=3, classes=3, parts=PARTS, policy=RoundPolicy())
    claims = {100: 0, 101: 1, 102: 0}
    requests = {node: Message(RecordDict(), dst_node_id=node, message_type="query") for node in claims}
    membership.admit(
        [Message(encode_join_reply(claims[node], 3, PARTS), reply_to=request) for node, request in requests.items()]
    )
    assert membership.nodes() == {1: 101}
    assert membership.absence_reason(0) == "cannot join: more than one node claims to be this site"
    assert [membership.site_of(node) for node in claims] == [None, 1, None]
    assert membership.rejections() == {
        f"node {node}": {"cannot join: another node is site 0": 1} for node in (100, 102)
    }


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (encode_failure(2), "cannot join: failed; see its log"),
        (Error(code=1, reason="site 2"), "cannot join: could not load the project; see its log"),
        (
            Error(code=7, reason="site 2"),
            "cannot join: does not run this project: its operator has not allowed it; see its log",
        ),
        (Error(code=99, reason="site 2"), "cannot join: failed with Flower's error 99; see its log"),
        (encode_join_reply(2, 4, PARTS), "cannot join: has 4 classes instead of 3"),
        (encode_join_reply(1, 3, PARTS), "is not connected"),
        (encode_failure("two"), f"{UNNUMBERED} cannot join: failed; see its log"),
        (encode_failure(7), f"{UNNUMBERED} cannot join: failed; see its log"),
        (encode_join_reply(7, 3, PARTS), f"{UNNUMBERED} cannot join: has site = 7, outside 0 to 2"),
        (None, f"{UNNUMBERED} did not reply to the join request"),
    ],
)
def test_the_reason_why_a_site_has_not_joined(reply: RecordDict | Error | None, reason: str) -> None:
    class Grid(ThreeNodes):
        def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
            *valid, last = super().send_and_receive(messages)
            request = Message(RecordDict(), dst_node_id=last.metadata.src_node_id, message_type="query")
            return valid if reply is None else [*valid, Message(reply, reply_to=request)]

    membership = Membership(sites=3, classes=3, parts=PARTS, policy=RoundPolicy())
    membership.wait_and_join(Grid())
    assert 2 not in membership.nodes()
    assert membership.absence_reason(2) == reason
    fixed = ThreeNodes()
    for _ in range(2):  # it is fixed, and asked again; the reply of a silent one is read in the next round
        membership.refresh(fixed)
    assert membership.nodes() == {0: 100, 1: 101, 2: 102}
    assert membership.absence_reason(2) == "is not connected"  # the old reason is gone


def test_impossible_counts_are_rejected(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def inflate(reply: Message, site: int, round: int) -> list[Message]:
        if reply.metadata.message_type == "evaluate" and site == 1:
            counts = reply.content["metrics"]
            counts["personal"] = [n + 1 for n in counts["total"]]
        return [reply]

    with caplog.at_level(logging.WARNING, "flwr"):
        deployment.run(inflate)
    assert "round 2: the results are without site 1, which has impossible counts in 'personal'" in caplog.text
    entry = json.loads((tmp_path / "run/seed-0/metrics.jsonl").read_text())
    assert entry["personal"]["clients"] == 1  # only the other site
    page = report.write([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "Sites that have no test data, or did not evaluate: 1." in page
    participation = json.loads((tmp_path / "run/seed-0/participation.json").read_text())
    assert participation["rejected"] == {"site 1": {"has impossible counts in 'personal'": 1}}


def test_test_samples_that_a_site_did_not_have_before_are_rejected(deployment: Deployment, tmp_path: Path) -> None:
    """A thousand test samples more, none of them right, would lower the accuracy of all."""

    def inflate(reply: Message, site: int, round: int) -> list[Message]:
        if reply.metadata.message_type == "evaluate" and (site, round) == (1, 2):
            counts = reply.content["metrics"]
            samples.append(sum(counts["total"]))
            counts["total"] = [n + 500 for n in counts["total"]]
            counts["shared"] = counts["personal"] = [0 for _ in counts["total"]]
        return [reply]

    samples: list[int] = []
    deployment.run(inflate, set="train.eval_every=1")
    lines = map(json.loads, (tmp_path / "run/seed-0/metrics.jsonl").read_text().splitlines())
    assert {entry["round"]: entry["personal"]["clients"] for entry in lines} == {1: 2, 2: 1}
    ((reasons),) = json.loads((tmp_path / "run/seed-0/participation.json").read_text())["rejected"].values()
    (reason,) = reasons
    assert reason.endswith(f" test samples and had {samples[0]} before, or other classes")


def test_below_quorum_the_run_stops_with_a_checkpoint_and_can_resume(deployment: Deployment, tmp_path: Path) -> None:
    def send_nan(reply: Message, site: int, round: int) -> list[Message]:
        if reply.metadata.message_type == "train" and site == 1 and round == 2:
            for name, part in list(reply.content["arrays"].items()):
                reply.content["arrays"][name] = Array(part.numpy() * np.float32("nan"))
        return [reply]

    with pytest.raises(ft.InputError, match="round 2 has 1 valid model of 2 and needs 2"):
        deployment.run(send_nan, quorum=1.0)
    assert not (tmp_path / "run/results.json").exists()
    participation = json.loads((tmp_path / "run/seed-0/participation.json").read_text())
    assert participation["rejected"] == {"site 1": {"is not finite": 1}}
    assert "fix the sites" in json.loads((tmp_path / "run/stopped.json").read_text())["reason"]
    assert (tmp_path / "run/seed-0/checkpoints/round-00001").exists()
    deployment.run(quorum=1.0)
    assert (tmp_path / "run/results.json").exists()
    assert not (tmp_path / "run/stopped.json").exists()


def test_a_server_that_diverges_stops_and_does_not_save_the_model(deployment: Deployment, tmp_path: Path) -> None:
    with pytest.raises(Diverged) as error:
        deployment.run(set='methods.fedtilt.aggregator={rule="tilted", steps=[3, 1e30]}')
    message = str(error.value)
    assert message == (
        "method 'fedtilt' diverged on the server: the aggregated model is not finite; "
        "lower the size in steps = (3, 1e+30)"
    )
    assert read_json(tmp_path / "run/stopped.json") == {"reason": message}
    assert not (tmp_path / "run/results.json").exists()
    state = RunFolder(tmp_path / "run/seed-0").latest()
    assert state.round == 0
    assert state.shared["fedtilt"].isfinite().all()
    assert [path.name for path in (tmp_path / "run/seed-0/checkpoints").iterdir()] == ["round-00000"]


def test_an_exception_on_a_site_goes_only_to_its_log(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    replies: list[Message] = []

    def record(reply: Message, site: int, round: int) -> list[Message]:
        replies.append(reply)
        return [reply]

    with pytest.raises(ft.InputError, match="round 1 has 0 valid models of 2"):
        deployment.run(record, node_config={n: {"partition-id": 17} for n in (0, 1)})
    assert {reply.error.reason for reply in replies} == {"site 17"}
    assert "partition-id = 17 of this SuperNode is not one of the sites 0 to 1" in caplog.text


def test_a_step_size_that_diverges_is_rejected_at_once() -> None:
    with pytest.raises(ft.InputError, match="diverges"):
        SiteStrategy(ft.ditto(3.0), PARTS, INFO, settings=TrainSettings(lr=1.0))
