"""A graph of tensor operations in parts, which run one after the other and can be compiled at the same time.

The parts depend on the graph alone, never on the machine, so that every machine with the same device computes the same.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx

_aten = torch.ops.aten

_OPERATIONS = 60  # of a part, about
_PRODUCTS = {_aten.bmm.default, _aten.mm.default, _aten.addmm.default, _aten.baddbmm.default}

Compiled = Callable[[list[Tensor]], Sequence[Tensor]]  # empties the list that it is given


class Part(NamedTuple):
    """A graph of its own; its inputs and outputs by the names of the nodes that they have in the whole graph."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def split_graph(graph: fx.GraphModule) -> list[Part]:
    """The parts of a graph in which nothing but inputs is changed, and that last.

    A view is computed by every part that needs it: two inputs of a part are never the same memory.
    """
    nodes = [node for node in graph.graph.nodes if node.op == "call_function" and not is_view(node)]
    starts = [0, *_cuts(nodes), len(nodes)]
    owner = {node: i for i, (a, b) in enumerate(itertools.pairwise(starts)) for node in nodes[a:b]}
    for node in nodes:
        if node.target is operator.getitem:  # a list of results stays in its part
            owner[node] = owner[node.args[0]]
    inputs: list[dict[fx.Node, None]] = [{} for _ in starts[1:]]
    outputs: list[dict[fx.Node, None]] = [{} for _ in starts[1:]]
    for node, part in owner.items():
        for base in _bases(node.all_input_nodes):
            if owner.get(base) != part:
                inputs[part][base] = None
                if base in owner:
                    outputs[owner[base]][base] = None
    parts = []
    for i in range(len(starts) - 1):
        of_part = [node for node in nodes if owner[node] == i]
        built = _graph_of(of_part, list(inputs[i]), list(outputs[i]))
        parts.append(Part(built, tuple(n.name for n in inputs[i]), tuple(n.name for n in outputs[i])))
    return parts


def _cuts(nodes: Sequence[fx.Node]) -> list[int]:
    """Where parts begin: after the product that is nearest to an even division, since no kernel goes across it."""
    end = next((i for i, node in enumerate(nodes) if is_mutable(node)), len(nodes))  # changes of inputs are in one part
    count = max(1, round(end / _OPERATIONS))
    after_products = [i + 1 for i, node in enumerate(nodes[:end]) if node.target in _PRODUCTS]
    even = [i * end // count for i in range(1, count)]
    return sorted({min(after_products, key=lambda i: (abs(i - cut), i), default=cut) for cut in even})


def _bases(nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """The nodes whose memory these are, or are views of."""
    for node in nodes:
        if is_view(node):
            yield from _bases(node.all_input_nodes)
        else:
            yield node


def _graph_of(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The graph that computes the outputs of the inputs with these nodes, and with views where they need them."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"input_{i}")
        copies[node].meta["val"] = node.meta["val"]

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copy_of)
        return copies[node]

    for node in nodes:
        copy_of(node)
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


def is_mutable(node: fx.Node) -> bool:
    """Whether an operation changes one of its inputs."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_view(node: fx.Node) -> bool:
    """Whether the result of an operation is memory of its input, or an entry of a list of such results."""
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    if not isinstance(node.target, torch._ops.OpOverload) or is_mutable(node):
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)


def run_parts(parts: Sequence[Part], compiled: Sequence[Compiled], values: dict[str, Tensor]) -> None:
    """Run the parts on the inputs of the whole graph by name; what is used no more is freed."""
    last = {name: i for i, part in enumerate(parts) for name in part.inputs}
    for i, (part, function) in enumerate(zip(parts, compiled, strict=True)):
        inputs = [values.pop(name) if last[name] == i else values[name] for name in part.inputs]
        values.update(zip(part.outputs, function(inputs), strict=True))
