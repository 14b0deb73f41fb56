"""Vectors that stay in the object store of a cluster until their values are needed in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class LostTensorError(RuntimeError):
    """The node that had a vector has died."""

    def __init__(self) -> None:
        super().__init__("a node of the cluster died with models that were only there; resume the run")


class ObjectStore(Protocol):
    """Where the blocks of vectors are, on nodes with workers."""

    def get(self, references: Sequence[Any]) -> list[Tensor]:
        """The blocks with these references; raises `LostTensorError`."""
        ...

    def map_blocks(
        self, function: Callable[..., Tensor], blocks: Sequence[Sequence[Any]], arguments: Sequence[Sequence[Any]]
    ) -> Iterator[Tensor]:
        """function(block (C, columns), *its arguments) for the references to every block's rows, in order."""
        ...


class RemoteTensor(Tensor):
    """A vector (P,) whose blocks are in an object store, on one node.

    It can be stored, passed on and copied without its values. Any other operation fetches them, and works on a copy in
    this process; one that would write into the vector raises.
    """

    store: ObjectStore
    references: list[Any]  # to the blocks, in order
    node: str  # the id of the node that has the blocks
    finite: bool  # whether all values are

    @staticmethod
    def __new__(
        cls, store: ObjectStore, references: list[Any], size: int, device: torch.device, node: str, finite: bool
    ) -> "RemoteTensor":
        """A tensor without storage."""
        made: RemoteTensor = torch.Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.float32, device=device)
        made.store, made.references, made.node, made.finite = store, references, node, finite
        return made

    def fetch(self) -> Tensor:
        """A copy of the values in this process."""
        return torch.cat(self.store.get(self.references)).to(self.device)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy in another process has the values."""
        return self.fetch().__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"RemoteTensor({self.numel()} values on node {self.node})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every operation on tensors."""
        if func in (torch.ops.aten.clone.default, torch.ops.aten.detach.default):
            return args[0]  # nobody can write into it
        if func._schema.is_mutable and isinstance(args[0], cls):
            raise RuntimeError("a RemoteTensor cannot be written; fetch its values first")
        fetched_args, fetched_kwargs = tree_map_only(cls, cls.fetch, (tuple(args), dict(kwargs or {})))
        return func(*fetched_args, **fetched_kwargs)


def fetched(tensor: Tensor) -> Tensor:
    """The same tensor in this process."""
    return tensor.fetch() if isinstance(tensor, RemoteTensor) else tensor
