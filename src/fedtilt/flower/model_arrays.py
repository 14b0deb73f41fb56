"""Models as Flower arrays, by the names of their tensors, and the checks of what arrives."""

import io
import math
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedtilt.parts import Parts, named_pieces

Shapes = Mapping[str, tuple[int, ...]]


class RejectedReply(Exception):
    """A reply that must not be used; the text is the reason."""


def sent_shapes(parts: Parts) -> Shapes:
    """Name → shape of every tensor that travels, in order: the shared parameters, then the buffers if averaged."""
    return {**parts.shared_shapes, **(parts.buffers if parts.averages_buffers else {})}


_VALUE = "value"


def to_arrays(parts: Parts, parameters: Tensor, buffers: Tensor | None) -> ArrayRecord:
    """Shared parameters (S,) and, if they are averaged, buffers (B,) as Flower arrays by name."""
    pieces = named_pieces(parameters, parts.shared_shapes)
    if parts.averages_buffers:
        assert buffers is not None
        pieces |= named_pieces(buffers, parts.buffers)
    return ArrayRecord({name: piece.detach().cpu().contiguous() for name, piece in pieces.items()})


def from_arrays(record: ArrayRecord, parts: Parts) -> dict[str, Tensor]:
    """The inverse of `to_arrays`: "parameters" and, if they are averaged, "buffers"."""
    values = _vector(record, sent_shapes(parts))
    size = sum(math.prod(shape) for shape in parts.shared_shapes.values())
    return {"parameters": values[:size]} | ({"buffers": values[size:]} if parts.averages_buffers else {})


def to_array(tensor: Tensor) -> ArrayRecord:
    """A tensor of any shape as one Flower array."""
    return ArrayRecord({_VALUE: tensor.detach().cpu().float().contiguous()})


def from_array(record: ArrayRecord, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `to_array`."""
    return _vector(record, {_VALUE: shape}).reshape(shape)


def _vector(record: ArrayRecord, shapes: Shapes) -> Tensor:
    """Flower arrays as one vector (P,); rejects other names, shapes and types before it uses any of their bytes.

    A received array header is never parsed, only compared with the expected one.
    """
    missing, unknown = shapes.keys() - record.keys(), record.keys() - shapes.keys()
    if missing or unknown:
        raise RejectedReply(f"has other parameters: {len(missing)} are missing and {len(unknown)} are unknown")
    parts = []
    for name, shape in shapes.items():
        array, header = record[name], _header(shape)
        if array.shape != shape:
            raise RejectedReply(f"has shape {shorten(array.shape)} instead of {shape} in {name!r}")
        if array.dtype != "float32":
            raise RejectedReply(f"has type {shorten(array.dtype)} instead of float32 in {name!r}")
        right_size = array.stype == "numpy.ndarray" and len(array.data) == len(header) + 4 * math.prod(shape)
        if not right_size or not array.data.startswith(header):
            raise RejectedReply("has a parameter that cannot be read")
        parts.append(np.frombuffer(array.data, "<f4", offset=len(header)))
    return torch.from_numpy(np.concatenate(parts))


def _header(shape: tuple[int, ...]) -> bytes:
    """The first bytes that `np.save`, which Flower uses, writes for a float32 array of this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def shorten(value: object) -> str:
    """A value from a reply as at most 40 printable characters."""
    text = ascii(value).strip("'")
    return text if len(text) <= 40 else text[:39] + "…"
