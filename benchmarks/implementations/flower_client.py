"""The Flower client app; a module of its own, so that Ray's actors cache its data."""

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from protocol import Workload
from torch import Tensor
from torch_models import build_model, train_locally

app = ClientApp()


@functools.cache
def read_workload() -> Workload:
    """The workload, which all actors read from the same file."""
    return Workload.read(os.environ["FEDTILT_BENCH_WORKLOAD"])


@functools.cache
def load_data() -> dict[int, tuple[Tensor, Tensor]]:
    """All clients' samples; an actor loads them on first use."""
    torch.set_num_threads(1)
    return {c: (torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in read_workload().all_samples().items()}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for a round; its personal model is in the node's state."""
    workload, client = read_workload(), int(message.content["config"]["client"])
    x, y = load_data()[client]
    received = message.content["arrays"].to_torch_state_dict()
    net = build_model(workload.model)
    steps = 0
    if workload.mu is not None:
        personal = context.state["personal"].to_torch_state_dict() if "personal" in context.state else received
        net.load_state_dict(personal)
        steps += train_locally(net, x, y, workload, mu=workload.mu, anchor=list(received.values()))
        context.state["personal"] = ArrayRecord(net.state_dict())
    net.load_state_dict(received)
    steps += train_locally(net, x, y, workload, anchor=[])
    metrics = MetricRecord({"steps": steps, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.query()
def send_personal_model(message: Message, context: Context) -> Message:
    """Send the personal model once at the end, so that the benchmark can evaluate it."""
    records = {"arrays": context.state["personal"]} if "personal" in context.state else {}
    return Message(RecordDict(records), reply_to=message)
