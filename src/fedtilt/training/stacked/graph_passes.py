"""Changes to the graph of a step before it is compiled: constants become inputs, and what is not needed goes."""

from typing import Any, cast

import torch
from torch import Tensor, fx

_aten = torch.ops.aten


def lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Make what a graph computes from constants alone (the class weights of a loss) further inputs; return these.

    Otherwise every call would copy them to the device, which a CUDA graph cannot capture.
    """
    values: dict[fx.Node, Any] = {}
    for node in graph.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr":
            values[node] = getattr(graph, node.target)
        elif node.op == "call_function" and inputs and all(i in values for i in inputs):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
        elif _is_mutable(node) and any(i in values for i in inputs):
            return []  # the step changes its own copy
    lifted: list[Tensor] = []
    first = next(node for node in graph.graph.nodes if node.op != "placeholder")
    for node, value in values.items():
        users = [user for user in node.users if user not in values]
        if users:
            with graph.graph.inserting_before(first):
                placeholder = graph.graph.placeholder(f"constant_{len(lifted)}")
            placeholder.meta = dict(node.meta)
            node.replace_all_uses_with(placeholder, delete_user_cb=lambda user: user not in values)
            lifted.append(value)
    for node in reversed(values):
        graph.graph.erase_node(node)
    graph.recompile()
    return lifted


def simplify(graph: fx.GraphModule) -> None:
    """Join views of views, compute once what is computed twice, and drop what nobody uses.

    The layers of a model permute and reshape what others have permuted and reshaped. Without, the kernels are the same,
    and the compiler has a fifth fewer operations to go through.
    """
    nodes = list(graph.graph.nodes)
    mutable = [node for node in nodes if _is_mutable(node)]
    if not all(_changes_an_input(node) for node in mutable):
        return  # equal values need not stay equal
    seen: dict[Any, fx.Node] = {}
    for node in nodes:
        if node in mutable:  # from here on, inputs have other values
            break
        if node.op != "call_function" or _is_random(node):
            continue
        same = _joined(node) or seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _joined(node: fx.Node) -> fx.Node | None:
    """Let a view of a view be a view of the tensor itself; return that tensor where the view is equal to it."""
    source: Any = node.args[0] if node.args else None
    if node.target is _aten.permute.default:
        order = [i % len(_shape(node)) for i in cast("list[int]", node.args[1])]
        if source.target is _aten.permute.default:
            source, inner = source.args
            order = [inner[i] for i in order]
        node.args = source, order
        return source if order == sorted(order) else None
    if node.target is _aten.view.default:
        shape = _shape(node)
        if source.target is _aten.view.default:
            source = source.args[0]
        node.args = source, shape
        return source if shape == _shape(source) else None
    return None


def _shape(node: fx.Node) -> list[int]:
    return list(node.meta["val"].shape)


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _changes_an_input(node: fx.Node) -> bool:
    if node.target is not _aten.copy_.default:
        return False
    target: Any = node.args[0]  # a tensor that was copied to before is there as the result of that copy
    return target.op == "placeholder" or _changes_an_input(target)


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
