"""What a server must not believe: every flawed reply is refused, counted, and changes nothing."""

import io
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import Diverged
from fedtilt.flower import FedTiltStrategy, Rules
from fedtilt.flower.membership import Roster
from fedtilt.flower.messages import Update as Trained
from fedtilt.flower.messages import from_arrays, say_failed, say_joined, say_update, to_arrays
from fedtilt.flower.task import Frame
from fedtilt.models import flat
from fedtilt.rounds.settings import TrainSettings
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

MODEL = ft.models.mlp((4,), 3, hidden=(5,))
P = len(flat(MODEL))
NAMELESS = "has not joined, and node 102, which does not say who it is,"
FRAME = Frame((4,), ("a", "b", "c"), ("0", "1", "2"), torch.zeros(3, dtype=torch.bool))


class Nodes:
    """Three connected nodes that say who they are."""

    def get_node_ids(self) -> list[int]:
        return [100, 101, 102]

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        return [Message(say_joined(m.metadata.dst_node_id - 100, 3, P), reply_to=m) for m in messages]


def trained(site: int) -> Tensor:
    return flat(MODEL) + site + 1


def round_one(
    method: ft.Method | None = None, rules: Rules | None = None, participation: float = 1.0
) -> tuple[FedTiltStrategy, dict[int, Message], dict[int, Message]]:
    """A strategy that waits for round 1's answers, its questions, and sound answers by site."""
    training = TrainSettings(participation=participation, rounds=1)
    method = method or ft.fedavg(weighting="samples")
    strategy = FedTiltStrategy(method, MODEL, FRAME, training=training, rules=rules)
    nodes = Nodes()
    strategy.roster.gather(nodes)
    arrays = to_arrays(MODEL, flat(MODEL))
    asked = {m.metadata.dst_node_id - 100: m for m in strategy.configure_train(1, arrays, ConfigRecord(), nodes)}
    sound = {s: Message(say_update(MODEL, Trained(trained(s), 10 + s), 1), reply_to=m) for s, m in asked.items()}
    return strategy, asked, sound


def without(site: int) -> ArrayRecord:
    strategy, _, sound = round_one()
    return strategy.aggregate_train(1, [reply for n, reply in sound.items() if n != site])[0]


def metrics(**values: object) -> Callable[[RecordDict], None]:
    return lambda content: content["metrics"].update(values)


def drop(key: str) -> Callable[[RecordDict], None]:
    return lambda content: content.pop(key)


def array(value: object) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        name = "1.bias"
        content["arrays"][name] = value if isinstance(value, Array) else Array(value)  # type: ignore[arg-type]

    return change


def model(w: Tensor) -> Callable[[RecordDict], None]:
    return lambda content: content.update(arrays=to_arrays(MODEL, w))


def saved(value: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as numpy writes it."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, value, version)
    return buffer.getvalue()


def headed(text: bytes) -> bytes:
    """Five numbers under a header of one's own."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(20)


FIVE = np.arange(5, dtype=np.float32)
FLAWS = {
    "is not finite": model(torch.full((P,), math.nan)),
    "is not finite ": model(flat(MODEL).index_fill(0, torch.tensor([3]), math.inf)),
    "has shape (4,) instead of (5,) in '1.bias'": array(np.zeros(4, np.float32)),
    "has shape () instead of (5,) in '1.bias'": array(np.zeros((), np.float32)),
    "has shape (1,) instead of (5,) in '1.bias'": array(np.zeros(1, np.float32)),
    "has shape (274877906944,) instead": array(Array("float32", (2**38,), "numpy.ndarray", saved(FIVE))),
    "has shape (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,… instead of (5,) in '1.bias'": array(
        Array("float32", (0,) * 9999, "numpy.ndarray", saved(FIVE))
    ),
    "has type float64 instead of float32 in '1.bias'": array(np.zeros(5)),
    "has type int32 instead of float32 in '1.bias'": array(np.zeros(5, np.int32)),
    "has type a\\n" + "b" * 36 + "… instead of float32 in '1.bias'": array(
        Array("a\n" + "b" * 9999, (5,), "numpy.ndarray", saved(FIVE))
    ),
    "has a parameter that cannot be read": array(Array("float32", (5,), "pickle", saved(FIVE))),
    "has other parameters: 0 are missing and 1 are unknown": lambda c: c["arrays"].update(
        more=Array(np.zeros(1, np.float32))
    ),
    "has other parameters: 1 are missing and 0 are unknown": lambda c: c["arrays"].pop("1.bias"),
    "has no model": drop("arrays"),
    "has no metrics": drop("metrics"),
    "is of round 0 instead of 1": metrics(round=0),
    "is of round 7 instead of 1": metrics(round=7),
    "says round is not a whole number": metrics(round=1.0),
    "says num-examples = -5, outside 1 to 10000000": metrics(**{"num-examples": -5}),
    "says num-examples = 0, outside 1 to 10000000": metrics(**{"num-examples": 0}),
    "says num-examples = 1000000000000, outside 1 to 10000000": metrics(**{"num-examples": 10**12}),
    "says num-examples is not a whole number": metrics(**{"num-examples": 10.5}),
}


UNREADABLE = {  # what arrives as five numbers; numpy raises TokenError or MemoryError on some of these headers
    "nothing": b"",
    "rubbish": b"rubbish",
    "a header that does not end": headed(b"("),
    "a header that is too deep": headed(b"-" * 9000 + b"1"),
    "a header of a terabyte": headed(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % (2**38)),
    "a header of another length": headed(b"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }"),
    "no header": bytes(len(saved(FIVE))),
    "a header alone": saved(FIVE)[:-20],
    "a number short": saved(FIVE[:4]).replace(b"(4,)", b"(5,)"),
    "a byte short": saved(FIVE)[:-1],
    "a byte over": saved(FIVE) + b"\0",
    "a number over": saved(FIVE) + bytes(4),
    "other magic": b"\x94" + saved(FIVE)[1:],
    "another version": saved(FIVE, (2, 0)),
    "another shape": saved(FIVE.reshape(5, 1)),
    "another type of the same size": saved(FIVE.astype(np.int32)),
    "another order of bytes": saved(FIVE.astype(">f4")),
    "another order of rows": saved(FIVE).replace(b"False,", b"True, "),
    "objects": saved(np.array([{"a": 1}] * 5, dtype=object)),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_bytes_that_are_no_such_array_are_refused(what: str) -> None:
    piece = Array("float32", (5,), "numpy.ndarray", UNREADABLE[what])
    refused_alone(array(piece), "has a parameter that cannot be read")


def test_what_flower_sends_is_read() -> None:
    shapes = {"scalar": (), "none": (0,), "flat": (3, 0, 2), "one": (1, 7, 1), "image": (2, 3, 4, 5), "long": (99_999,)}
    sent = {name: torch.randn(shape) for name, shape in shapes.items()}
    assert torch.equal(from_arrays(ArrayRecord(sent), shapes), torch.cat([v.reshape(-1) for v in sent.values()]))


@pytest.mark.parametrize("why", FLAWS)
def test_a_flawed_reply_is_as_if_it_had_not_come(why: str) -> None:
    refused_alone(FLAWS[why], why.strip())


def refused_alone(spoil: Callable[[RecordDict], None], why: str) -> None:
    """Spoil the answer of site 1: it alone is refused, for this reason, and the others are averaged."""
    strategy, _, sound = round_one()
    spoil(sound[1].content)
    arrays, told = strategy.aggregate_train(1, sound.values())
    assert same(arrays, without(1))
    ((who, found),) = strategy.roster.refusals().items()
    assert who == "site 1"
    assert list(found.values()) == [1]
    assert next(iter(found)).startswith(why)
    assert told == {"sites": 2, "refused": 1}


def same(a: ArrayRecord, b: ArrayRecord) -> bool:
    return all(np.array_equal(a[name].numpy(), b[name].numpy()) for name in {*a, *b})


def test_an_error_a_duplicate_a_stranger_and_silence() -> None:
    strategy, asked, sound = round_one()
    failed = Message(Error(code=2, reason="secret"), reply_to=asked[1])
    assert same(strategy.aggregate_train(1, [sound[0], failed, sound[2]])[0], without(1))
    assert strategy.roster.refusals() == {"site 1": {"failed, and its own log says why": 1}}

    strategy, _, sound = round_one()
    assert same(strategy.aggregate_train(1, [sound[1], *sound.values()])[0], without(1))
    assert strategy.roster.refusals() == {"site 1": {"answered 2 times": 1}}

    strategy, asked, sound = round_one()
    stranger = Message(RecordDict(), dst_node_id=999, message_type="train")
    reply = Message(say_update(MODEL, Trained(trained(9), 10), 1), reply_to=stranger)
    strategy.aggregate_train(1, [*sound.values(), reply])
    assert strategy.roster.refusals() == {"node 999": {"was not asked": 1}}

    strategy, _, sound = round_one()
    strategy.aggregate_train(1, [sound[0], sound[2]])
    assert strategy.roster.refusals() == {"site 1": {"did not answer in time": 1}}


def test_a_site_that_was_not_asked_this_round_does_not_enter() -> None:
    strategy, asked, sound = round_one(participation=0.67)
    (left_out,) = {0, 1, 2} - asked.keys()
    question = Message(RecordDict(), dst_node_id=100 + left_out, message_type="train")
    eager = Message(say_update(MODEL, Trained(trained(left_out), 10), 1), reply_to=question)
    arrays, told = strategy.aggregate_train(1, [*sound.values(), eager])
    assert same(arrays, without(left_out))
    assert told == {"sites": 2, "refused": 0}
    assert strategy.roster.refusals() == {f"site {left_out}": {"was not asked": 1}}


def test_the_order_of_arrival_does_not_matter() -> None:
    first, last = ([*range(3)], [2, 0, 1])
    results = []
    for order in (first, last):
        strategy, _, sound = round_one()
        results.append(strategy.aggregate_train(1, [sound[n] for n in order])[0])
    assert same(*results)


def test_below_quorum_the_round_is_not_settled() -> None:
    strategy, _, sound = round_one(rules=Rules(quorum=1.0))
    sound[1].content["metrics"]["round"] = 9
    with pytest.raises(ft.InputError) as error:
        strategy.aggregate_train(1, sound.values())
    assert str(error.value) == (
        "round 1 has 2 sound models of 3 and needs 3 (site 1 is of round 9 instead of 1); "
        "the run stops after round 0: mend the sites and run it again"
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (say_joined(7, 3, P), "says site = 7, outside 0 to 2"),
        (say_joined(0, 4, P), "has 4 classes instead of 3"),
        (say_joined(0, 3, 1), f"has 1 parameters instead of {P}"),
        (RecordDict({"metrics": MetricRecord({"site": 0.5})}), "says site is not a whole number"),
        (RecordDict(), "has no metrics"),
    ],
)
def test_who_does_not_fit_cannot_join(said: RecordDict, why: str) -> None:
    strategy, _, _ = round_one()
    strategy.roster.admit([Message(said, reply_to=Message(RecordDict(), dst_node_id=55, message_type="query"))])
    assert strategy.roster.refusals() == {"node 55": {f"cannot join: {why}": 1}}
    assert strategy.roster.nodes() == {0: 100, 1: 101, 2: 102}


def test_nobody_takes_another_sites_place() -> None:
    strategy, _, _ = round_one()
    question = Message(RecordDict(), dst_node_id=55, message_type="query")
    strategy.roster.admit([Message(say_joined(0, 3, P), reply_to=question)])
    assert strategy.roster.nodes()[0] == 100
    assert strategy.roster.refusals() == {"node 55": {"cannot join: another node is site 0": 1}}


def test_of_two_new_nodes_that_claim_one_site_neither_is_believed() -> None:
    roster = Roster(sites=3, classes=3, parameters=P, rules=Rules())
    claims = {100: 0, 101: 1, 102: 0}
    asked = {node: Message(RecordDict(), dst_node_id=node, message_type="query") for node in claims}
    roster.admit([Message(say_joined(claims[node], 3, P), reply_to=question) for node, question in asked.items()])
    assert roster.nodes() == {1: 101}
    assert roster.absence(0) == "cannot join: more than one node says that it is this site"
    assert [roster.site(node) for node in claims] == [None, 1, None]
    assert roster.refusals() == {f"node {node}": {"cannot join: another node is site 0": 1} for node in (100, 102)}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (say_failed(2), "cannot join: failed, and its own log says why"),
        (Error(code=1, reason="site 2"), "cannot join: could not load the project, and its own log says why"),
        (Error(code=99, reason="site 2"), "cannot join: failed with Flower's error 99, and its own log may say why"),
        (say_joined(2, 4, P), "cannot join: has 4 classes instead of 3"),
        (say_joined(1, 3, P), "is not connected"),
        (say_failed("two"), f"{NAMELESS} cannot join: failed, and its own log says why"),
        (say_failed(7), f"{NAMELESS} cannot join: failed, and its own log says why"),
        (say_joined(7, 3, P), f"{NAMELESS} cannot join: says site = 7, outside 0 to 2"),
        (None, f"{NAMELESS} did not answer when it was asked to join"),
    ],
)
def test_why_a_site_has_not_joined_is_told_as_far_as_it_is_known(reply: RecordDict | Error | None, why: str) -> None:
    class Grid(Nodes):
        def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
            *sound, last = super().send_and_receive(messages)
            question = Message(RecordDict(), dst_node_id=last.metadata.src_node_id, message_type="query")
            return sound if reply is None else [*sound, Message(reply, reply_to=question)]

    roster = Roster(sites=3, classes=3, parameters=P, rules=Rules())
    roster.gather(Grid())
    assert 2 not in roster.nodes()
    assert roster.absence(2) == why
    roster.update(Nodes())  # it is mended, and asked again
    assert roster.nodes() == {0: 100, 1: 101, 2: 102}
    assert roster.absence(2) == "is not connected"  # nothing of what was before is left


def test_impossible_verdicts_are_refused(deployment: Deployment, tmp_path: Path) -> None:
    def boast(reply: Message, site: int, round: int) -> list[Message]:
        if reply.metadata.message_type == "evaluate" and site == 1:
            counts = reply.content["metrics"]
            counts["personal"] = [n + 1 for n in counts["total"]]
        return [reply]

    deployment.run(boast)
    entry = json.loads((tmp_path / "run/seed-0/metrics.jsonl").read_text())
    assert entry["personal"]["clients"] == 1  # the other site alone
    faults = json.loads((tmp_path / "run/seed-0/faults.json").read_text())
    assert faults["refused"] == {"site 1": {"has impossible counts in 'personal'": 1}}


def test_below_quorum_the_run_stops_with_a_checkpoint_and_goes_on_later(deployment: Deployment, tmp_path: Path) -> None:
    def poison(reply: Message, site: int, round: int) -> list[Message]:
        if reply.metadata.message_type == "train" and site == 1 and round == 2:
            for name, part in list(reply.content["arrays"].items()):
                reply.content["arrays"][name] = Array(part.numpy() * np.float32("nan"))
        return [reply]

    with pytest.raises(ft.InputError, match="round 2 has 1 sound model of 2 and needs 2"):
        deployment.run(poison, quorum=1.0)
    assert not (tmp_path / "run/results.json").exists()
    faults = json.loads((tmp_path / "run/seed-0/faults.json").read_text())
    assert faults["refused"] == {"site 1": {"is not finite": 1}}
    assert "mend the sites" in json.loads((tmp_path / "run/stopped.json").read_text())["why"]
    assert (tmp_path / "run/seed-0/checkpoints/round-00001").exists()
    deployment.run(quorum=1.0)
    assert (tmp_path / "run/results.json").exists()
    assert not (tmp_path / "run/stopped.json").exists()


def test_a_server_that_diverges_stops_with_one_sentence_and_keeps_no_such_model(
    deployment: Deployment, tmp_path: Path
) -> None:
    with pytest.raises(Diverged) as error:
        deployment.run(set="methods.fedtilt.steps=[3, 1e30]")
    why = str(error.value)
    assert why == (
        "method 'fedtilt' diverged on the server: what it made of the clients' models is not finite; "
        "lower the size in steps = (3, 1e+30)"
    )
    assert json.loads((tmp_path / "run/stopped.json").read_text()) == {"why": why}
    assert not (tmp_path / "run/results.json").exists()
    kept = RunFolder(tmp_path / "run/seed-0").latest()
    assert kept.round == 0
    assert kept.shared["fedtilt"].isfinite().all()
    assert [path.name for path in (tmp_path / "run/seed-0/checkpoints").iterdir()] == ["round-00000"]


def test_a_site_tells_only_its_own_log_what_went_wrong(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[Message] = []

    def listen(reply: Message, site: int, round: int) -> list[Message]:
        said.append(reply)
        return [reply]

    with pytest.raises(ft.InputError, match="round 1 has 0 sound models of 2"):
        deployment.run(listen, node_config={n: {"partition-id": 17} for n in (0, 1)})
    assert {reply.error.reason for reply in said} == {"site 17"}
    assert "partition-id = 17 of this SuperNode is not one of the sites 0 to 1" in caplog.text


def test_a_step_that_diverges_is_refused_at_once() -> None:
    with pytest.raises(ft.InputError, match="diverges"):
        FedTiltStrategy(ft.ditto(3.0), nn.Linear(4, 3), FRAME, training=TrainSettings(lr=1.0))
