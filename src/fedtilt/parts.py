"""The parts of a model: what is trained and shared, what stays on a client, what is frozen, and its buffers.

    shared     parameters that are trained and aggregated: the vector (S,) that travels
    local      parameters that are trained and stay on their client
    frozen     parameters with requires_grad = False: trained nowhere, sent never
    buffers    tensors that `forward` changes in training, such as the running statistics of BatchNorm

A trained model is one vector (T,) of its shared and local parameters in the order of the module, and one vector (B,) of
its buffers.
"""

import fnmatch
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data.inputs import Shape
from fedtilt.errors import InputError
from fedtilt.models import (
    copy_with_parameters,
    parameters_to_vector,
    random_output,
    tied_last_layer,
    trained_parameters,
)
from fedtilt.state import ServerState

LAST_LAYER = "last"  # a pattern of parameter names: those of the last layer, unless a layer has this name

BUFFER_MODES = (
    "local",  # every client keeps its own (SiloBN, Andreux et al., DCL 2020, arXiv 2008.07424)
    "average",  # the server averages them
    "frozen",  # they never change; normalisation layers use them in training too
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of one model, and its initial values; `Parts.of` makes them."""

    trained: Mapping[str, tuple[int, ...]]  # name → shape of every trained parameter, in order
    local_names: tuple[str, ...]
    frozen_names: tuple[str, ...]
    buffers: Mapping[str, tuple[int, ...]]  # name → shape of every buffer that changes
    buffer_mode: str
    initial: Tensor  # (T,)
    initial_buffers: Tensor | None  # (B,); None: the model has no buffers that change
    constants: Mapping[str, str]  # name → digest of the frozen parameters and all initial buffers
    _is_local: Tensor | None  # (T,) bool; None: all are shared
    _tied_last_layer: str | None = None  # see `tied_last_layer`

    @classmethod
    def of(cls, model: nn.Module, input_shape: Shape, *, local: Sequence[str] = (), buffers: str = "local") -> Self:
        """The parts of a model.

        Args:
            model: the model, on the CPU
            input_shape: the shape of one sample, to find out which buffers change
            local: patterns of parameter names that stay on their client, such as "head.*"; see `match_names`
            buffers: a word of `BUFFER_MODES`
        """
        changing = changing_buffers(model, input_shape)
        named = dict(model.named_buffers())
        parts = cls(
            trained={name: tuple(p.shape) for name, p in trained_parameters(model).items()},
            local_names=(),
            frozen_names=tuple(name for name, p in model.named_parameters() if not p.requires_grad),
            buffers={name: tuple(named[name].shape) for name in changing},
            buffer_mode=buffers,
            initial=parameters_to_vector(model).cpu(),
            initial_buffers=buffers_to_vector(model, changing).cpu() if changing else None,
            constants=_digests(model),
            _is_local=None,
            _tied_last_layer=tied_last_layer(model),
        )
        return parts.keeping(local)

    @classmethod
    def plain(cls, initial: Tensor) -> Self:
        """The parts of a model that is one vector (T,), all of it trained and shared."""
        return cls(
            trained={"theta": tuple(initial.shape)}, local_names=(), frozen_names=(), buffers={}, buffer_mode="local",
            initial=initial, initial_buffers=None, constants={}, _is_local=None,
        )  # fmt: skip

    def keeping(self, local: Sequence[str]) -> Self:
        """The same parts, with the parameters of these patterns local too; see `match_names`."""
        if not local:
            return self
        names = {*self.local_names, *match_names(local, self.trained)}
        has_name = any(name.startswith(f"{LAST_LAYER}.") for name in self.trained)
        if LAST_LAYER in local and self._tied_last_layer is not None and not has_name:
            raise InputError(
                f"local = {LAST_LAYER!r} needs a last layer with parameters of its own; this model ties it to "
                f"{self._tied_last_layer!r}; name the parameters, such as that one"
            )
        if names == {*self.local_names}:
            return self
        if len(names) == len(self.trained):
            raise InputError(f"local = {list(local)} leaves no parameter to share; use the method local instead")
        cache: dict[frozenset[str], Self] = self.__dict__.setdefault("_keeping", {})  # a mask is as long as the model
        if frozenset(names) not in cache:
            is_local = [torch.full((math.prod(shape),), name in names) for name, shape in self.trained.items()]
            local_names = tuple(name for name in self.trained if name in names)
            cache[frozenset(names)] = replace(self, local_names=local_names, _is_local=torch.cat(is_local))
        return cache[frozenset(names)]

    def to_json(self) -> dict[str, Any]:
        """Names, shapes, and digests of what is frozen, for a run folder."""
        return {
            "model": {name: list(shape) for name, shape in self.trained.items()},
            "local": list(self.local_names),
            "buffers": {name: list(shape) for name, shape in self.buffers.items()},
            "constants": dict(self.constants),
        }

    @property
    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of the parameters that travel."""
        return {name: shape for name, shape in self.trained.items() if name not in self.local_names}

    @property
    def shared_size(self) -> int:
        """S, the number of entries that travel."""
        return sum(math.prod(shape) for shape in self.shared_shapes.values())

    @property
    def keeps_buffers(self) -> bool:
        """Whether every client keeps buffers of its own for the shared model."""
        return bool(self.buffers) and self.buffer_mode == "local"

    @property
    def averages_buffers(self) -> bool:
        """Whether the server averages buffers."""
        return bool(self.buffers) and self.buffer_mode == "average"

    @property
    def trains_buffers(self) -> bool:
        """Whether training changes buffers."""
        return bool(self.buffers) and self.buffer_mode != "frozen"

    @property
    def is_uniform(self) -> bool:
        """Whether the shared model is the same on every client."""
        return self._is_local is None and not self.keeps_buffers

    def initial_digests(self, *, shared: bool) -> dict[str, str]:
        """Name → digest of what all clients must start with, because no message carries it.

        With `shared`, also of the shared parameters, which a message carries in the first round.
        """
        pieces = named_pieces(self.initial, self.trained)
        names = self.trained if shared else self.local_names
        return {**self.constants, **{name: _digest(pieces[name]) for name in names}}

    def initial_server(self) -> ServerState:
        """What the server starts with: the shared parameters, and the buffers that it averages."""
        return ServerState(self.shared(self.initial), self.initial_buffers if self.averages_buffers else None)

    def shared(self, trained: Tensor) -> Tensor:
        """The shared entries (S,) of a trained model (T,)."""
        return trained if self._is_local is None else trained[~self._is_local.to(trained.device)]

    def local(self, trained: Tensor) -> Tensor | None:
        """The local entries of a trained model (T,); None if there are none."""
        return None if self._is_local is None else trained[self._is_local.to(trained.device)]

    def expand(self, shared: Tensor) -> Tensor:
        """These shared entries (S,) as entries of a trained model (T,), 0 for the local ones."""
        if self._is_local is None:
            return shared
        model = shared.new_zeros(len(self.initial))
        model[~self._is_local.to(shared.device)] = shared
        return model

    @functools.cached_property
    def is_local(self) -> Tensor:
        """1 for the local entries of a trained model, 0 for the shared ones, (T,)."""
        return torch.zeros_like(self.initial) if self._is_local is None else self._is_local.to(self.initial.dtype)

    def merge(self, shared: Tensor, local: Tensor | None) -> Tensor:
        """The model (T,) of these shared and local entries; without `local`, the initial ones."""
        if self._is_local is None:
            return shared
        model = self.initial.to(shared.device, copy=True)
        is_local = self._is_local.to(shared.device)
        model[~is_local] = shared
        if local is not None:
            model[is_local] = local.to(shared.device)
        return model


def match_names(patterns: Sequence[str], names: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
    """The names that match any of the patterns (`head.*`, or a module's name alone); every pattern must match one.

    `LAST_LAYER` is the layer of the last name.

    >>> match_names(["head"], ["body.weight", "head.weight", "head.bias"])
    ('head.weight', 'head.bias')
    >>> match_names([LAST_LAYER], ["0.weight", "0.bias", "2.weight", "2.bias"])
    ('2.weight', '2.bias')
    """
    matched: set[str] = set()
    for pattern in patterns:
        matches = [n for n in names if fnmatch.fnmatchcase(n, pattern) or n.startswith(f"{pattern}.")]
        if not matches and pattern == LAST_LAYER:
            last = _layer_of(list(names)[-1])
            matches = [n for n in names if _layer_of(n) == last]
        if not matches:
            raise InputError(f"local = {pattern!r} matches no trained parameter; they are {_list(names)}")
        matched.update(matches)
    return tuple(n for n in names if n in matched)


def _list(names: Mapping[str, object] | Sequence[str], most: int = 8) -> str:
    shown = list(names)
    return ", ".join(shown[:most]) + (f", … ({len(shown)} in all)" if len(shown) > most else "")


def changing_buffers(model: nn.Module, input_shape: Shape) -> tuple[str, ...]:
    """The buffers that a forward pass in training mode changes: all of a layer if it changes any of them."""
    names = [name for name, _ in model.named_buffers()]
    if not names:
        return ()
    net = copy_with_parameters(model, trained_parameters(model)).train()
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.no_grad(), seeds.seeded_global_rng(0):
        random_output(net, input_shape)
    changed = {_layer_of(name) for name, buffer in net.named_buffers() if not torch.equal(buffer, before[name])}
    return tuple(name for name in names if _layer_of(name) in changed)


def _layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def buffers_to_vector(model: nn.Module, names: Sequence[str]) -> Tensor:
    """These buffers as one new float32 vector (B,); counters are whole numbers below 2²⁴."""
    named = dict(model.named_buffers())
    return torch.cat([named[name].detach().reshape(-1).float() for name in names])


def vector_to_buffers(model: nn.Module, names: Sequence[str], vector: Tensor) -> dict[str, Tensor]:
    """New tensors by name, in the types of the model's buffers, from a vector (…, B); averaged counters are rounded."""
    named = dict(model.named_buffers())
    pieces = vector.split([named[name].numel() for name in names], dim=-1)
    return {
        name: (piece if named[name].is_floating_point() else piece.round())
        .reshape((*vector.shape[:-1], *named[name].shape))
        .to(named[name].dtype, copy=True)
        for name, piece in zip(names, pieces, strict=True)
    }


def named_pieces(vector: Tensor, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Views into a vector by name and shape."""
    pieces = vector.split([math.prod(shape) for shape in shapes.values()])
    return {name: piece.reshape(tuple(shape)) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def _digests(model: nn.Module) -> dict[str, str]:
    """Name → digest of everything that no client sends: frozen parameters, and the buffers that all start from."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return {name: _digest(value) for name, value in {**frozen, **dict(model.named_buffers())}.items()}


def _digest(values: Tensor) -> str:
    header = f"{values.dtype} {tuple(values.shape)} ".encode()
    content = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(header + content, digest_size=8).hexdigest()


def tied_parameters(net: nn.Module) -> dict[str, str]:
    """Tied parameters and stored buffers: every further name of one, with its first name."""
    first_name = {id(value): name for name, value in (*net.named_parameters(), *net.named_buffers())}
    stored = net.state_dict()
    all_names = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
    named = {name: first_name[id(value)] for name, value in all_names if name in stored}
    return {name: first for name, first in named.items() if first != name}


def constants_of(net: nn.Module, parts: Parts) -> dict[str, Tensor]:
    """The state of a model without what is shared: frozen parameters, initial local parameters and initial buffers."""
    first_name, shared = tied_parameters(net), parts.shared_shapes
    state = {name: value for name, value in net.state_dict().items() if first_name.get(name, name) not in shared}
    return {name: value.detach().clone() for name, value in state.items() if isinstance(value, Tensor)}
