"""Compile a part of a graph; run as a script, generate the code of those that come in, for torch's cache.

It imports torch alone: a process that runs it starts sooner.
"""

import importlib
import json
import operator
import os
import sys
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)


def compile_part(graph: fx.GraphModule, settings: dict[str, Any]) -> Any:
    """Compile a graph in which nothing but its inputs is changed."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    (result,) = graph.graph.find_nodes(op="output")
    result.meta["user_visible_output_idxs"] = list(range(len(result.args[0])))  # with the strides that the next takes
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    mode = inputs[0].fake_mode
    with config.patch(settings), tracing(TracingContext(mode)), V.set_fake_mode(mode), torch.no_grad():
        return compile_fx_inner(graph, inputs, is_inference=True)


def graph_text(graph: fx.GraphModule) -> str | None:
    """A graph of a part for another process, or None where it has more than torch's operators and plain values."""

    def encode(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return {"node": value.name}
        if isinstance(value, _TORCH_VALUES):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, (list, tuple)):
            return [encode(v) for v in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"{value!r} has no text")

    inputs, nodes, outputs = [], [], []
    try:
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                value = node.meta["val"]
                layout = value.shape, value.stride(), value.storage_offset(), value.dtype, value.device
                inputs.append([node.name, *map(encode, layout)])
            elif node.op == "output":
                outputs = [encode(value) for value in node.args[0]]
            elif node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload):
                target = "getitem" if node.target is operator.getitem else str(node.target)
                keywords = {key: encode(value) for key, value in node.kwargs.items()}
                nodes.append([node.name, target, encode(node.args), keywords])
            else:
                return None
    except TypeError:
        return None
    return json.dumps({"inputs": inputs, "nodes": nodes, "outputs": outputs})


def graph_from_text(text: str) -> fx.GraphModule:
    """The graph of `graph_text`, with fake tensors as inputs."""
    graph, named, mode = fx.Graph(), dict[str, fx.Node](), FakeTensorMode(shape_env=ShapeEnv())

    def decode(value: Any) -> Any:
        if isinstance(value, list):
            return [decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        ((kind, name),) = value.items()
        if kind == "node":
            return named[name]
        return torch.device(name) if kind == "device" else getattr(torch, name)

    content = json.loads(text)
    for name, shape, stride, offset, dtype, device in content["inputs"]:
        named[name] = graph.placeholder(name)
        length = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        with mode:
            memory = torch.empty(max(0, length), dtype=decode(dtype), device=decode(device))
            named[name].meta["val"] = torch.as_strided(memory, shape, stride, offset)
    for name, target, arguments, keywords in content["nodes"]:
        keywords = {key: decode(value) for key, value in keywords.items()}
        named[name] = graph.create_node("call_function", _operator(target), tuple(decode(arguments)), keywords, name)
    graph.output(tuple(decode(content["outputs"])))
    return fx.GraphModule(torch.nn.Module(), graph)


def _operator(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    namespace, operation, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)


def main() -> None:
    """Answer every two lines, settings and a graph, with a line: the names, sources and devices of its kernels."""
    device, matmul_precision = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints is no reply
    torch.set_num_threads(1)
    importlib.import_module("torch._inductor.compile_fx")  # before the first graph comes: it takes seconds
    kernels: list[tuple[str, ...]] = []
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision(matmul_precision)  # it is in the key of torch's cache
        _collect_kernels(kernels)
    for settings in sys.stdin:
        compile_part(graph_from_text(sys.stdin.readline()), json.loads(settings))
        print(json.dumps(kernels), file=replies, flush=True)
        kernels.clear()


def _collect_kernels(kernels: list[tuple[str, ...]]) -> None:
    """Let generated code not compile its kernels here, one after the other: the process that trains has a pool."""
    from torch._inductor.async_compile import AsyncCompile

    def triton(_: AsyncCompile, name: str, source: str, device_str: str = "cuda") -> None:
        kernels.append((name, source, device_str))

    AsyncCompile.triton = triton  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main()
