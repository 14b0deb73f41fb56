"""Fine-tune with LoRA: the clients train small adapters of `peft` inside a frozen model (pip install peft).

The model knows digits in black on white. The clients hold them in white on black; the adapters learn that from sixty
images on each client, and merge into a model of the original shape.
"""

import peft
import torch
import torch.nn.functional as F
from torch import nn

import fedtilt as ft


def pretrained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """A perceptron that was trained on images with inverted colours."""
    torch.manual_seed(0)
    model = ft.models.mlp((1, 8, 8), 10, hidden=(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(10):
        for rows in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(-x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def main() -> None:
    """Adapt the model on ten clients; print the accuracy before and after, and merge the adapters."""
    digits = ft.data.load("digits")
    federation = ft.Federation.build(digits, clients=10, partition="dirichlet", alpha=0.5, max_train=60)
    base = pretrained(2 * digits.x_train - 1, digits.y_train)  # pixels in [-1, 1], as in the run
    x, y = 2 * digits.x_test - 1, digits.y_test
    print(f"before: {100 * (base(x).argmax(1) == y).float().mean():.1f} % accuracy")

    torch.manual_seed(0)  # peft draws the adapters
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["1", "3", "5"]))
    result = ft.run(
        [ft.fedavg()], federation, adapted, rounds=10, participation=0.5, epochs=5, optimizer="adamw", lr=0.01,
        eval_every=10,
    )["fedavg"]  # fmt: skip

    tuned = result.shared
    trained = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
    merged = tuned.merge_and_unload()
    total = sum(p.numel() for p in merged.parameters())
    print(
        f"after: {100 * (merged(x).argmax(1) == y).float().mean():.1f} % accuracy, {trained} of {total} numbers travel"
    )


if __name__ == "__main__":
    main()
