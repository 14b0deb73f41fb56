"""The server: Flower's usual one, with fedtilt's strategy in place of FedAvg."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedtilt.flower import FedTiltStrategy
from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and save the model."""
    config = context.run_config
    strategy = FedTiltStrategy(aggregator=config["aggregator"], fraction_evaluate=config["fraction-evaluate"])
    torch.manual_seed(0)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=config["num-server-rounds"]
    )
    torch.save(result.arrays.to_torch_state_dict(), config["out"])
