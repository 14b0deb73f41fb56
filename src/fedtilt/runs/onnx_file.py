"""Models as ONNX files: written only if ONNX Runtime gives the answers of PyTorch, and run."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.files import read_bytes, write_bytes
from fedtilt.imports import import_extra
from fedtilt.models import logits

_TOLERANCE = 1e-4  # of the outputs, relative to the largest


def write_onnx(
    path: str | os.PathLike[str], model: nn.Module, example: Tensor, metadata: Mapping[str, str] | None = None
) -> float:
    """Write a model and texts as an ONNX file, and return the largest difference between ONNX Runtime and PyTorch.

    The input is named `input` and the output `output`; batches may have any size. `example` has at least two samples.
    """
    # torch.onnx needs the last
    onnx, runtime, _ = (import_extra(n, "an ONNX file", "onnx") for n in ("onnx", "onnxruntime", "onnxscript"))
    model = _OneInput(model).eval()
    with _quiet():
        batch = {0: torch.export.Dim("batch")}
        program = torch.onnx.export(
            model, (example,), input_names=["input"], output_names=["output"], dynamic_shapes=(batch,), verbose=False
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, dict(metadata or {}))
    content = proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference = 0.0
    for x in (example, example[:1], example.repeat(3, *[1] * (example.dim() - 1))):
        with torch.no_grad():
            expected = model(x)
        found = torch.from_numpy(session.run(None, {"input": x.numpy()})[0])
        difference = max(difference, (found - expected).abs().max().item())
        if found.shape != expected.shape or not difference <= _TOLERANCE * max(1.0, expected.abs().max().item()):
            raise InputError(
                f"ONNX Runtime differs from PyTorch by {difference:.3g} on this model, so {path} was not written; "
                "export it as safetensors"
            )
    write_bytes(Path(path), content)
    return difference


def read_onnx(path: str | os.PathLike[str]) -> tuple[Callable[[Tensor], Tensor], dict[str, str]]:
    """What computes the outputs of an ONNX file for a batch, and the file's metadata."""
    runtime, content = import_extra("onnxruntime", "an ONNX file", "onnx"), read_bytes(Path(path))
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise InputError(f"{path} is not an ONNX file, or damaged ({error}); export it again") from error

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])

    return run, dict(session.get_modelmeta().custom_metadata_map)


class _OneInput(nn.Module):
    """A model whose `forward` takes one tensor by name, as the exporter needs it: not `*args`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The output for a batch."""
        return logits(self.model, x)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without messages of the exporter about itself, such as packages that it could use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
