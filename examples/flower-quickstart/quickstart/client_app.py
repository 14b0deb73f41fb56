"""The client: plain Flower, which knows nothing of fedtilt's strategy."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


def received(message: Message, context: Context):
    """The received model, and the batches of this client."""
    net = task.Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, task.load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the data of this client."""
    net, (batches, _) = received(message, context)
    config = context.run_config
    loss = task.train(net, batches, config["local-epochs"], config["learning-rate"], config["lam"])
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the received model on the data of this client."""
    net, (_, batches) = received(message, context)
    metrics = MetricRecord({"accuracy": task.test(net, batches), "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
