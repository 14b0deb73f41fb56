"""The app of a federation some of whose sites attack; a Flower project can hold a copy of this file."""

from collections.abc import Collection

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtilt.attacks.forged_updates import forged_update
from fedtilt.flower import Task, client_app


def attacking_app(task: Task, kind: str, strength: float, sites: Collection[int]) -> ClientApp:
    """All sites train as they are told, and these send a forged update."""

    def forge(message: Message, context: Context, call_next: object) -> Message:
        reply = call_next(message, context)  # type: ignore[operator]
        if context.node_config["partition-id"] not in sites:
            return reply
        received, trained = message.content.array_records["arrays"], reply.content.array_records["arrays"]
        for name in trained:
            start = torch.from_numpy(received[name].numpy())
            own = torch.from_numpy(trained[name].numpy()) - start
            forged = forged_update(kind, own.flatten(), own.flatten()[None], strength, key=1).reshape(own.shape)
            trained[name] = type(trained[name])((start + forged).numpy())
        return reply

    app, honest = ClientApp(), client_app(task)

    @app.train(mods=[forge])
    def train(message: Message, context: Context) -> Message:
        return honest(message, context)

    app.query()(honest)
    app.evaluate()(honest)
    return app
