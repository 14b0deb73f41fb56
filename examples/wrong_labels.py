"""Find mislabelled samples: 20 % of the labels are wrong and stay so; the audit names them without knowing the truth.

`fedtilt audit RUN --drop suspects.csv` trains again without them.
"""

from functools import partial

import torch

import fedtilt as ft

MODEL = partial(ft.models.mlp, hidden=(64, 64))


def main() -> None:
    """Train with an audit, and compare the suspects with the truth."""
    federation = ft.Federation.build(
        ft.data.load("digits"), clients=20, max_train=60,
        outliers="flips", outlier_rate=0.2, outlier_redraw="once", outlier_flip_to="any",
    )  # fmt: skip
    result = ft.run(
        [ft.fedtilt(tau=0, lam=-2)], federation, MODEL,
        rounds=40, participation=0.25, lr=0.1, eval_every=40, audit=True,
    )  # fmt: skip
    audit = result.audit()
    wrong = torch.stack([federation.outlier_mask(int(n))[i] for n, i in zip(audit.client, audit.sample, strict=True)])
    suspect = audit.score >= 0.5
    expected = audit.cut(0.5)
    print(f"{int(suspect.sum())} suspects among {len(audit)} samples, {100 * expected.precision:.0f} % expected wrong")
    print(f"{int((suspect & wrong).sum())} of them are wrong, of {int(wrong.sum())} wrong labels in all")
    worst = audit.worst(1)[0]
    print(f"the worst: {worst.row} of client {worst.client}, labelled {worst.label}, looks like {worst.looks_like}")


if __name__ == "__main__":
    main()
