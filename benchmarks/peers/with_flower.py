"""Flower's simulation: Ray, one actor per core, its FedAvg strategy; Ditto's personal models in the nodes' state."""

import argparse
import os
from importlib.metadata import version

import torch
from turns import Turns, work_of

parser = argparse.ArgumentParser()
parser.add_argument("work")
arguments = parser.parse_args()
work = work_of(arguments.work)
os.environ["FEDTILT_BENCH_WORK"] = os.path.abspath(arguments.work)

import flower_app  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402


class Scheduled(FedAvg):
    """FedAvg that trains the clients of the work's schedule; node i of the sorted nodes is client i."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.turns, self.asked = turns, iter(turns)

    def configure_train(self, server_round, arrays, config, grid):
        clients = next(self.asked)  # ends the round before, and waits until the benchmark asks for this one
        nodes = sorted(grid.get_node_ids())
        for client in clients:
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
            yield Message(content, dst_node_id=nodes[client], message_type="train")

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"a Flower client failed: {failed[0]}")
        self.turns.steps = sum(reply.content["metrics"]["steps"] for reply in replies)
        return super().aggregate_train(server_round, replies)


def main() -> None:
    turns = Turns(work)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Scheduled(turns)
        start = ArrayRecord({name: torch.from_numpy(value) for name, value in work.start().items()})
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=len(work.schedule))
        next(strategy.asked, None)
        personal = {}
        if work.mu is not None:
            nodes = sorted(grid.get_node_ids())
            wanted = {nodes[client]: client for clients in work.schedule for client in clients}
            questions = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in wanted]
            for reply in grid.send_and_receive(questions):
                own = reply.content["arrays"].to_torch_state_dict()
                personal[wanted[reply.metadata.src_node_id]] = {name: value.numpy() for name, value in own.items()}
        shared = {name: value.numpy() for name, value in result.arrays.to_torch_state_dict().items()}
        turns.finish(shared, personal, flwr=version("flwr"), ray=version("ray"), torch=torch.__version__)

    run_simulation(
        server_app=server,
        client_app=flower_app.app,
        num_supernodes=work.clients,
        backend_config={
            "init_args": {"num_cpus": work.workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
