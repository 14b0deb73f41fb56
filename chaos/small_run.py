"""The small run of most parts: two clients, personal models, a checkpoint after every round."""

from pathlib import Path

SPEC = """
name = "small"
device = "cpu"
[data]
name = "toy-2"
[model]
name = "mlp"
hidden = [4]
[train]
rounds = 2
participation = 1.0
epochs = 1
lr = 0.1
eval_every = 1
[storage]
checkpoint_seconds = 0
[[methods]]
preset = "fedavg"
[[methods]]
preset = "ditto"
mu = 0.1
"""
ROUNDS = 2
METHOD = "ditto"  # has personal models

TABLE = "".join(
    ["age,ward,seen,site,y\n"]
    + [
        f"{20 + n},{'abc'[n % 3]},2026-01-{1 + n % 28:02d},{'ns'[n % 2]},{'yes' if n % 5 else 'no'}\n"
        for n in range(60)
    ]
)


def write_spec(folder: Path) -> Path:
    """Write the spec of the small run, and return its path."""
    path = folder / "small.toml"
    path.write_text(SPEC)
    return path
