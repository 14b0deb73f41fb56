"""Example images, clean and with each kind of outlier, from the code that training uses."""

import base64
from typing import Any

import torch
from torch import Tensor

from fedtilt import data
from fedtilt.data.outliers import Outliers, apply
from fedtilt.devices import pick_device
from reproduction import plots
from reproduction.chapter import CaptionedFigure, Chapter, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set."""
    settings = experiment.settings
    return [
        Case(
            name=name,
            what=f"{name}: {settings['images']} images, {', '.join(settings['outliers'])}",
            settings={key: settings[key] for key in ("images", "outliers", "seed")} | {"data": name},
            needs=name,
            parts=("shape", "labels", "pixels"),
        )
        for name in settings["data"]
    ]


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """The pixels (images, channels, height, width), 0 to 255, in base64, for every kind of outlier."""
    dataset = data.load(case.settings["data"], options.data_dir)
    rows = _first_of_each_class(dataset.y_train, case.settings["images"])
    device = pick_device(options.device)
    assert isinstance(dataset.x_train, Tensor)
    x, y = dataset.x_train[rows].to(device), dataset.y_train[rows].to(device)
    x = x.float() / 255 if x.dtype == torch.uint8 else x
    pixels = {}
    for i, kind in enumerate(case.settings["outliers"]):
        outliers = Outliers() if kind == "none" else Outliers(kind=kind, rate=1.0)
        noisy, _ = apply(outliers, x, y, [y.unique()], seed=case.settings["seed"], round=1, clients=[0], sizes=[len(y)])
        assert isinstance(noisy, Tensor)
        levels = (noisy.clamp(0, 1) * 255).round().to(torch.uint8)
        pixels[kind] = base64.b64encode(levels.contiguous().cpu().numpy().tobytes()).decode()
        on_progress(i + 1, len(case.settings["outliers"]), kind)
    return {"shape": list(x.shape), "labels": [dataset.class_names[k] for k in y], "pixels": pixels}


def _first_of_each_class(labels: Tensor, count: int) -> Tensor:
    """The index of the first sample of each of the first `count` classes."""
    return torch.stack([(labels == label).nonzero()[0, 0] for label in labels.unique()[:count]])


def chapter(experiment: Experiment, results: dict[str, dict[str, Any]]) -> Chapter:
    """One figure of images per data set."""
    names = experiment.settings["names"]
    parts: list[Text | CaptionedFigure] = []
    for name in experiment.settings["data"]:
        if name not in results:
            parts.append(Text(markdown=f"Not measured yet: {name}."))
            continue
        result = results[name]
        rows = {names[kind]: _decode(pixels, result["shape"]) for kind, pixels in result["pixels"].items()}
        parts.append(
            CaptionedFigure(
                name=f"outliers-{name}",
                caption=f"{name}: {', '.join(result['labels'])}",
                figure=plots.image_sheet(rows),
            )
        )
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


def _decode(pixels: str, shape: list[int]) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(pixels)), dtype=torch.uint8).reshape(shape)
