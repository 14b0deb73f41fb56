"""Export trained models: their state, and the metadata to use them, as safetensors or ONNX files."""

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data.sampling import DrawnRows
from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.files import interpreting, read_bytes, write_bytes, write_tensors
from fedtilt.imports import import_extra
from fedtilt.models import ModelSource, build_exported, exported_shape, logits
from fedtilt.parts import match_names, named_pieces
from fedtilt.runs.trained_run import TrainedRun, read_trained_run
from fedtilt.state import ClientState, ServerState

_NOT_EXPORTED = (
    *("clients", "has_outliers", "attackers", "left_out", "about_data", "group", "class_names"),
    *("drawn", "test_rows", *DrawnRows._fields),
)
_TOLERANCE = 1e-4  # of the outputs of ONNX Runtime, relative to the largest


class Export(NamedTuple):
    """A trained model for a safetensors file."""

    tensors: dict[str, Tensor]  # as `load_state_dict` takes them
    metadata: dict[str, str]  # how to build and use the model: texts unchanged, other values as JSON
    sources: dict[str, str]  # part of the model → where it comes from, such as "initial"
    personal: bool  # whether it is a personal model
    round: int  # after which it was saved
    method: str
    client: str | None  # whose model it is; None: the shared model
    notes: Sequence[str] = ()  # what the model does not have

    def with_threshold(self, threshold: Threshold) -> "Export":
        """The same model with this threshold on one of its classes."""
        if "target" in self.metadata or "task" in self.metadata:
            what = "numbers" if "target" in self.metadata else "tokens or several labels"
            raise InputError(f"threshold {threshold.name}={threshold.value:g} is for classes, and this predicts {what}")
        threshold.check(json.loads(self.metadata["classes"]))
        return self._replace(metadata={**self.metadata, "threshold": json.dumps(threshold.to_json())}, notes=())

    def write(self, path: Path, model: ModelSource | str | None = None) -> float | None:
        """Write a safetensors file, or an ONNX file; of the latter, return how much ONNX Runtime differs from PyTorch.

        An ONNX file needs the model itself: `model` is as in `models.load`.
        """
        if path.suffix == ".safetensors":
            write_tensors(path, self.tensors, self.metadata)
            return None
        if path.suffix != ".onnx":
            raise InputError(f"{path} ends neither in .safetensors nor in .onnx, the formats that are written")
        net = build_exported(self.tensors, self.metadata, "the run", model, trusted=True)
        shape = exported_shape(self.metadata)
        if isinstance(shape, dict):
            raise InputError(
                f"{path}: an ONNX file has one input, and this model has {', '.join(shape)}; use safetensors"
            )
        example = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
        return write_onnx(path, net, example, self.metadata)


def export_model(
    folder: str | os.PathLike[str],
    method: str | None = None,
    client: int | str | None = None,
    seed: int | None = None,
    *,
    trained_only: bool = False,
    round: int | None = None,
) -> Export:
    """A trained model of a run, after the round of its last checkpoint, or of the one of `round`; see `ft.load`.

    A damaged checkpoint raises InputError; the one before it is exported only on request. With `trained_only`, without
    what training did not change: frozen parameters, and parts that have their initial values.
    """
    return export_of(read_trained_run(Path(folder), seed, round), method, client, trained_only=trained_only)


def export_of(
    run: TrainedRun, method: str | None = None, client: int | str | None = None, *, trained_only: bool = False
) -> Export:
    """A trained model of a run; for the arguments see `export_model`."""
    with interpreting(Path(run.source)):
        method, number = run.method(method), run.client_number(client)
        server, kept = run.server[method], _client_state(run, method, number)
        own = (run.fingerprint["methods"][method].get("local") or {}).get("names", [])  # beside those of the run
        local = [*run.fingerprint["local"], *match_names(own, run.fingerprint["model"])]
        fingerprint = {**run.fingerprint, "local": local}
        description = {key: value for key, value in run.description.items() if key not in _NOT_EXPORTED}
        if "class_names" in run.description:  # `classes` are those of the counts, which may be groups
            description["classes"] = run.description["class_names"]
        elif "task" in description:
            description.pop("classes", None)
        if number is not None:
            description["client"] = run.clients[number]
        sources = _sources(fingerprint, server, kept)
        threshold, notes = run.thresholds.get(method), []
        if number is not None or _is_evaluated(run, method, sources):
            if threshold is not None:
                description["threshold"] = threshold.to_json()
            if (scores := run.scores(method)) is not None:
                description["scores"] = scores.to_json(number)
        elif threshold is not None:
            notes.append(
                f"without the threshold {threshold.name}={threshold.value:.4g} of the run, which was chosen for the "
                "models of clients"
            )
        tensors = _named_state(fingerprint, run.constants, server, kept)
        if trained_only:
            changed = _trained_names(fingerprint, sources)
            if len(changed) < len(tensors):
                description.pop("model", None)  # it takes all tensors to build it
            tensors = {name: tensor for name, tensor in tensors.items() if name in changed}
            sources = {part: "left out" if source == "initial" else source for part, source in sources.items()}
        values = description | {"method": method, "round": run.round} | sources
        texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in values.items()}
        return Export(
            tensors, texts, sources, kept.personal is not None, run.round, method, description.get("client"), notes
        )


def _client_state(run: TrainedRun, method: str, number: int | None) -> ClientState:
    """The state of a client, or an error that says why there is none.

    It may be empty if the client uses the shared model with prediction sets of its own.
    """
    if number is None:
        return ClientState()
    kept = run.client_state(method, number)
    if kept.is_empty and run.own_client is None and not _has_own_scores(run, method, number):
        raise InputError(
            f"client {run.clients[number]} has no personal model of method {method!r}, and no local parameters or "
            "buffers: it was never selected, or there are none; export the shared model, without --client"
        )
    if kept.is_empty and run.server[method] is None:
        raise InputError(
            f"{run.source} has no model of its own: the site was never selected, or its file is damaged (see "
            "report.txt); export the shared model on the server"
        )
    return kept


def _has_own_scores(run: TrainedRun, method: str, number: int) -> bool:
    """Whether a client has validation samples, which calibrate prediction sets for it."""
    scores = run.scores(method)
    return scores is not None and len(scores.validation[number]) > 0


def _sources(fingerprint: Mapping[str, Any], server: ServerState | None, kept: ClientState) -> dict[str, str]:
    """Where local parameters and buffers of an exported model come from, if it has any."""
    sources = {}
    if fingerprint["local"]:
        sources["local_parameters"] = "of the client" if kept.local is not None else "initial"
    if fingerprint["buffers"]:
        of_client = kept.personal_buffers is not None or kept.buffers is not None
        is_averaged = server is not None and server.buffers is not None
        sources["buffers"] = "of the client" if of_client else "averaged" if is_averaged else "initial"
    return sources


def _is_evaluated(run: TrainedRun, method: str, sources: Mapping[str, str]) -> bool:
    """Whether clients use the shared model as it is exported."""
    evaluation = run.evaluation(method)
    return evaluation is not None and evaluation.counts.personal is None and not sources


def _trained_names(fingerprint: Mapping[str, Any], sources: Mapping[str, str]) -> set[str]:
    """The names of the tensors that training has changed."""
    names = set(fingerprint["model"])
    if sources.get("local_parameters") == "initial":
        names -= set(fingerprint["local"])
    if sources.get("buffers", "initial") != "initial":
        names |= set(fingerprint["buffers"])
    return names | {name for name, first in fingerprint["tied"].items() if first in names}


def _named_state(
    fingerprint: Mapping[str, Any], constants: Mapping[str, Tensor], server: ServerState | None, kept: ClientState
) -> dict[str, Tensor]:
    """A model's tensors by name: constants of the run, over them the server state, over it that of the client."""
    trained, local = fingerprint["model"], fingerprint["local"]
    pieces = dict(constants)
    if server is not None:  # a site with a personal model has none
        pieces |= named_pieces(server.parameters, {n: s for n, s in trained.items() if n not in local})
    if kept.local is not None:
        pieces |= named_pieces(kept.local, {name: shape for name, shape in trained.items() if name in local})
    if kept.personal is not None:
        pieces |= named_pieces(kept.personal, trained)
    found = kept.personal_buffers, kept.buffers, None if server is None else server.buffers
    if (buffers := next((b for b in found if b is not None), None)) is not None:
        named = named_pieces(buffers, fingerprint["buffers"])
        pieces |= {name: buffer.to(constants[name].dtype) for name, buffer in named.items() if name in constants}
    return pieces | {name: pieces[first].clone() for name, first in fingerprint["tied"].items()}


# -- ONNX files --------------------------------------------------------------------------------------------------------


def write_onnx(
    path: str | os.PathLike[str], model: nn.Module, example: Tensor, metadata: Mapping[str, str] | None = None
) -> float:
    """Write a model and texts as an ONNX file, and return the largest difference between ONNX Runtime and PyTorch.

    The input is named `input` and the output `output`; batches may have any size. `example` has at least two samples.
    """
    # torch.onnx needs the last
    onnx, runtime, _ = (import_extra(n, "an ONNX file", "onnx") for n in ("onnx", "onnxruntime", "onnxscript"))
    model = _OneInput(model).eval()
    batch = {0: torch.export.Dim("batch")}
    try:
        with _quiet():
            program = torch.onnx.export(
                model, (example,), input_names=["input"], output_names=["output"], dynamic_shapes=(batch,),
                verbose=False,
            )  # fmt: skip
    except Exception as error:  # of the exporter or of the model: they have no common class
        why = str(error.__cause__ or error).strip().split("\n")[0]
        raise InputError(
            f"torch cannot write this model, for inputs of float32, as ONNX ({why}), so {path} was not written; export "
            "it as safetensors"
        ) from error
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
