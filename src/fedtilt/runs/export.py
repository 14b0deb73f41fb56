"""Export trained models: their state and the metadata to use them, also as ONNX files."""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data.naming import client_number
from fedtilt.engine.client_states import FederationState
from fedtilt.errors import InputError
from fedtilt.files import interpreting, write_bytes
from fedtilt.imports import import_extra
from fedtilt.models import logits
from fedtilt.parts import LAST_LAYER, Tensors, match_names, named_pieces
from fedtilt.runs.spec_run import open_seed
from fedtilt.storage.fingerprint import read_fingerprint

_TOLERANCE = 1e-4  # of the outputs of an ONNX file, relative to the largest


class Export(NamedTuple):
    """A trained model for a safetensors file."""

    tensors: dict[str, Tensor]  # as `load_state_dict` takes them
    metadata: dict[str, str]  # how to build and use the model: texts unchanged, other values as JSON
    sources: dict[str, str]  # part of the model → where it comes from, such as "initial"
    personal: bool  # whether it is a personal model
    round: int  # after which it was saved


def export_model(
    folder: str | os.PathLike[str],
    method: str,
    client: int | str | None = None,
    seed: int | None = None,
    *,
    trained_only: bool = False,
    round: int | None = None,
) -> Export:
    """A trained model of a run, after the round of its last checkpoint.

    A damaged checkpoint raises InputError; the one before it is exported only on request.

    Args:
        folder: the run folder
        method: the name of the method
        client: number or name of a client, for the model that it uses; None: the shared model
        seed: which seed of the run; None: the first
        trained_only: without what training did not change: frozen parameters, and parts that have their initial values
        round: the round of a checkpoint; None: of the last
    """
    _, run_folder = open_seed(Path(folder), seed)
    state = run_folder.latest(round)
    if state is None:
        raise InputError(f"{folder} has no checkpoint yet; resume the run")
    if method not in state.server:
        raise InputError(f"{folder} has no method {method!r}; it has {', '.join(state.server)}")
    with interpreting(run_folder.folder):
        description = run_folder.description()
        clients = description.pop("clients", [])
        fingerprint, server = read_fingerprint(run_folder.folder / "fingerprint.json"), state.server[method]
        kept: Tensors = {}
        if client is not None:
            kept = _client_state(state, fingerprint, method, client_number(client, clients), client)
            description["client"] = clients[client_number(client, clients)]
        own = local_names(fingerprint["methods"][method])  # beside those of the run
        fingerprint["local"] = [*fingerprint["local"], *match_names(own, fingerprint["model"])]
        sources = _sources(fingerprint, server, kept)
        tensors = _named_state(fingerprint, run_folder.constants(), server, kept)
        if trained_only:
            changed = _trained_names(fingerprint, sources)
            if len(changed) < len(tensors):
                description.pop("model", None)  # it takes all tensors to build it
            tensors = {name: tensor for name, tensor in tensors.items() if name in changed}
            sources = {part: "left out" if source == "initial" else source for part, source in sources.items()}
        values = description | {"method": method, "round": state.round} | sources
        texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in values.items() if key != "has_outliers"}
        return Export(tensors, texts, sources, "personal" in kept, state.round)


def state_dict(
    folder: str | os.PathLike[str], method: str, client: int | str | None = None, seed: int | None = None
) -> dict[str, Tensor]:
    """The tensors of `export_model`, as `load_state_dict` takes them."""
    return export_model(folder, method, client, seed).tensors


def local_names(method: Mapping[str, Any]) -> list[str]:
    """The patterns of the parameters that stay on their client, of a method in a fingerprint of any version."""
    local = method.get("local", [])
    return list(local.get("names", [LAST_LAYER]) if isinstance(local, dict) else local)


def _client_state(
    state: FederationState, fingerprint: Mapping[str, Any], method: str, number: int, client: int | str
) -> Tensors:
    """The state of a client, or an error that says why there is none."""
    if fingerprint.get("runner") == "flower":
        raise InputError(f"the state of client {client} is on its site; export the shared model, without --client")
    kept = state.client_states.get((method, number))
    if not kept:
        raise InputError(
            f"client {client} has no personal model of method {method!r}, and no local parameters or buffers: it was "
            "never selected, or there are none; export the shared model, without --client"
        )
    return kept


def _sources(fingerprint: Mapping[str, Any], server: Tensors, kept: Tensors) -> dict[str, str]:
    """Where local parameters and buffers of an exported model come from, if it has any."""
    sources = {}
    if fingerprint["local"]:
        sources["local_parameters"] = "of the client" if "local" in kept else "initial"
    if fingerprint["buffers"]:
        of_client = "personal_buffers" in kept or "buffers" in kept
        sources["buffers"] = "of the client" if of_client else "averaged" if "buffers" in server else "initial"
    return sources


def _trained_names(fingerprint: Mapping[str, Any], sources: Mapping[str, str]) -> set[str]:
    """The names of the tensors that training has changed."""
    names = set(fingerprint["model"])
    if sources.get("local_parameters") == "initial":
        names -= set(fingerprint["local"])
    if sources.get("buffers", "initial") != "initial":
        names |= set(fingerprint["buffers"])
    return names | {name for name, first in fingerprint["tied"].items() if first in names}


def _named_state(
    fingerprint: Mapping[str, Any], constants: Tensors, server: Tensors, kept: Tensors
) -> dict[str, Tensor]:
    """A model's tensors by name: constants of the run, over them the server state, over it that of the client."""
    trained, local = fingerprint["model"], fingerprint["local"]
    pieces = dict(constants) | named_pieces(server["parameters"], {n: s for n, s in trained.items() if n not in local})
    if "local" in kept:
        pieces |= named_pieces(kept["local"], {name: shape for name, shape in trained.items() if name in local})
    if "personal" in kept:
        pieces |= named_pieces(kept["personal"], trained)
    buffers = kept.get("personal_buffers", kept.get("buffers", server.get("buffers")))
    if buffers is not None:
        named = named_pieces(buffers, fingerprint["buffers"])
        pieces |= {name: buffer.to(constants[name].dtype) for name, buffer in named.items() if name in constants}
    return pieces | {name: pieces[first].clone() for name, first in fingerprint["tied"].items()}


# -- ONNX --------------------------------------------------------------------------------------------------------------


def write_onnx(
    path: str | os.PathLike[str], model: nn.Module, example: Tensor, metadata: Mapping[str, str] | None = None
) -> float:
    """Write a model as an ONNX file, and return the largest difference between ONNX Runtime and PyTorch.

    The input is named `input` and the output `output`; batches may have any size.

    Args:
        path: the file to write
        model: the model
        example: a batch of at least two samples
        metadata: texts to store in the file
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
