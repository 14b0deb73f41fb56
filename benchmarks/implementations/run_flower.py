"""Flower's simulation: Ray, one actor per core, its FedAvg strategy; Ditto's personal models in the nodes' state."""

import argparse
import os
from importlib.metadata import version

import torch
from protocol import RoundRequests, Workload

parser = argparse.ArgumentParser()
parser.add_argument("workload")
arguments = parser.parse_args()
workload = Workload.read(arguments.workload)
os.environ["FEDTILT_BENCH_WORKLOAD"] = os.path.abspath(arguments.workload)

import flower_client  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402


class ScheduledFedAvg(FedAvg):
    """FedAvg that trains the clients of the workload's schedule; client i is node i of the sorted nodes."""

    def __init__(self, requests: RoundRequests) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.requests, self.rounds = requests, iter(requests)

    def configure_train(self, server_round, arrays, config, grid):
        clients = next(self.rounds)  # ends the previous round and waits until the benchmark requests this one
        nodes = sorted(grid.get_node_ids())
        for client in clients:
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
            yield Message(content, dst_node_id=nodes[client], message_type="train")

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        errors = [reply.error for reply in replies if reply.has_error()]
        if errors:
            raise RuntimeError(f"a Flower client failed: {errors[0]}")
        self.requests.steps = sum(reply.content["metrics"]["steps"] for reply in replies)
        return super().aggregate_train(server_round, replies)


def main() -> None:
    requests = RoundRequests(workload)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = ScheduledFedAvg(requests)
        initial = ArrayRecord({name: torch.from_numpy(value) for name, value in workload.initial_weights().items()})
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=len(workload.schedule))
        next(strategy.rounds, None)
        personal = {}
        if workload.mu is not None:
            nodes = sorted(grid.get_node_ids())
            client_of = {nodes[client]: client for clients in workload.schedule for client in clients}
            queries = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in client_of]
            for reply in grid.send_and_receive(queries):
                weights = reply.content["arrays"].to_torch_state_dict()
                client = client_of[reply.metadata.src_node_id]
                personal[client] = {name: value.numpy() for name, value in weights.items()}
        shared = {name: value.numpy() for name, value in result.arrays.to_torch_state_dict().items()}
        requests.finish(shared, personal, flwr=version("flwr"), ray=version("ray"), torch=torch.__version__)

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=workload.clients,
        backend_config={
            "init_args": {"num_cpus": workload.workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
