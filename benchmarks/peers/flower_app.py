"""The Flower client: trains the client it is told to be; a module of its own, so that Ray's actors keep its cache."""

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from nets import network, train_locally
from torch import Tensor
from turns import work_of

app = ClientApp()


@functools.cache
def work():
    """The job, which all actors read from the same file."""
    return work_of(os.environ["FEDTILT_BENCH_WORK"])


@functools.cache
def data() -> dict[int, tuple[Tensor, Tensor]]:
    """All clients' samples: an actor loads them when it is first used."""
    torch.set_num_threads(1)
    return {c: (torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in work().every().items()}


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's round; the personal model lives in the node's state."""
    job, client = work(), int(message.content["config"]["client"])
    x, y = data()[client]
    received = message.content["arrays"].to_torch_state_dict()
    settings = {"epochs": job.epochs, "size": job.batch_size, "lr": job.lr}
    net = network(job.model)
    steps = 0
    if job.mu is not None:
        own = context.state["personal"].to_torch_state_dict() if "personal" in context.state else received
        net.load_state_dict(own)
        steps += train_locally(net, x, y, mu=job.mu, anchor=list(received.values()), **settings)
        context.state["personal"] = ArrayRecord(net.state_dict())
    net.load_state_dict(received)
    steps += train_locally(net, x, y, mu=0.0, anchor=[], **settings)
    metrics = MetricRecord({"steps": steps, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.query()
def personal(message: Message, context: Context) -> Message:
    """The personal model, asked for once at the end, to be judged."""
    held = {"arrays": context.state["personal"]} if "personal" in context.state else {}
    return Message(RecordDict(held), reply_to=message)
