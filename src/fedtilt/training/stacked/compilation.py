"""A function of tensors, compiled by torch, and kept in its cache for the next process.

Before, the graph of its operations is changed: constants become inputs, and what is not needed is removed.
"""

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch
from torch import Tensor, fx

from fedtilt.compiler import use_private_caches
from fedtilt.training.stacked.compiler_processes import CompilerProcesses, known_file, process_count
from fedtilt.training.stacked.compiler_worker import compile_part, graph_from_text, graph_text
from fedtilt.training.stacked.graph_parts import is_mutable, is_view, run_parts, split_graph

_aten = torch.ops.aten

_COMPILE_SETTINGS = {
    "deterministic": True,  # sums take the same order in every process: no kernel is chosen by its time
    "triton.autotune_at_compile_time": False,  # on in `standalone_compile`: it runs each kernel once, on random numbers
    "triton.autotune_pointwise": False,  # to compile and time several variants of a kernel takes longer than it saves
    "triton.coalesce_tiling_analysis": False,
    # what takes long to compile, and changes next to nothing in the kernels of a ResNet
    "max_fusion_buffer_group_pairwise_attempts": 4,
    "loop_ordering_after_fusion": False,
    "pattern_matcher": False,
    "triton.descriptive_names": False,  # Triton shortens long names, and torch builds a C launcher for what it misses
    "graph_partition": False,  # only for torch's own CUDA graphs
    "unroll_reductions_threshold": 10,  # the patches of a 3 × 3 kernel that see a pixel are added up in registers
    "realize_reads_threshold": 2,  # what many kernels read is stored once, where each would compute it again
}
_NEWER_COMPILE_SETTINGS = {"loop_reindexing_after_fusion": False}  # torch ≥ 2.13; it takes long, as above


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no garbage for a while: a tenth of the time that a compilation takes, and next to nothing to free."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_garbage_collection()
def compile_function(function: Callable[..., None], arguments: Sequence[Tensor], name: str) -> Callable[..., None]:
    """A function of tensors, compiled for arguments of these shapes; `name` says which function it is.

    `torch.compile` would trace Python first; its cache does not take what that gives for vmap, and every process would
    compile again. The parts of the graph of tensor operations are found in torch's cache.
    """
    use_private_caches()
    device, settings = arguments[0].device, _compile_settings()
    known = known_file(f"{name} {[(t.shape, t.dtype) for t in arguments]} {settings}")
    with CompilerProcesses(device, 0 if known.exists() else process_count(device)) as processes:
        with _prepare_compiler(device):
            graph, constants = trace_function(function, arguments)
        parts = split_graph(graph)
        texts = [graph_text(part.graph) for part in parts]
        processes.generate([text for text in texts if text is not None], settings)
    graphs = [part.graph if text is None else graph_from_text(text) for part, text in zip(parts, texts, strict=True)]
    compiled = [compile_part(graph, settings) for graph in graphs]
    with contextlib.suppress(OSError):  # then the next process starts processes in vain
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    return lambda *arguments: run_parts(parts, compiled, dict(zip(names, (*arguments, *constants), strict=True)))


def trace_function(
    function: Callable[..., None], arguments: Sequence[Tensor]
) -> tuple[fx.GraphModule, list[Tensor]]:  # fmt: skip
    """The operations of a function as a graph that changes nothing but its inputs, and its further inputs."""
    import torch._inductor.compile_fx  # decompositions need it
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    trace = functools.partial(make_fx, decomposition_table=select_decomp_table(), tracing_mode="fake")
    graph = trace(function)(*arguments)
    with torch.no_grad():
        constants = lift_constants(graph)
        if not _is_functional(graph):
            graph = trace(torch.func.functionalize(graph))(*arguments, *constants)
        simplify(graph)
    return graph, constants


def _compile_settings() -> dict[str, Any]:
    from torch._inductor import config

    known = config.get_config_copy()
    return _COMPILE_SETTINGS | {name: value for name, value in _NEWER_COMPILE_SETTINGS.items() if name in known}


@contextlib.contextmanager
def _prepare_compiler(device: torch.device) -> Iterator[None]:
    """Do meanwhile what every compilation begins with: start Triton's processes, and hash its files and torch's."""
    from torch._inductor.async_compile import maybe_warm_pool
    from torch._inductor.codecache import CacheBase, torch_key
    from torch._inductor.runtime.triton_compat import triton_key

    keys: list[Callable[[], object]] = [torch_key, CacheBase.get_system]  # torch remembers their results
    if device.type == "cuda":
        maybe_warm_pool()
        keys.append(triton_key)
    with ThreadPoolExecutor(1) as thread:
        hashed = [thread.submit(key) for key in keys]
        yield
    for key in hashed:
        key.result()


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
        elif is_mutable(node) and any(i in values for i in inputs):
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


def _is_functional(graph: fx.GraphModule) -> bool:
    """Whether a graph changes nothing but its inputs, after copies to new tensors are left out."""
    for node in graph.graph.nodes:
        if is_mutable(node) and not _changes_an_input(node):
            if node.target is not _aten.copy_.default or not _is_last_use(node):
                return False
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    return True


def _is_last_use(copied: fx.Node) -> bool:
    """Whether a tensor that is copied to is read only as the result of that copy, which has the same layout."""
    target, value = copied.args[:2]
    assert isinstance(target, fx.Node)
    if not isinstance(value, fx.Node) or is_view(target) or any(is_view(user) for user in target.users):
        return False
    layouts = [(t.shape, t.stride(), t.dtype, t.device) for t in (target.meta["val"], value.meta["val"])]
    return layouts[0] == layouts[1] and not any(user > copied for user in target.users)


def simplify(graph: fx.GraphModule) -> None:
    """Join views of views, compute once what is computed twice, and drop what nobody uses.

    The layers of a model permute and reshape what others have permuted and reshaped. Without, the kernels are the same,
    and the compiler has a fifth fewer operations to go through.
    """
    nodes = list(graph.graph.nodes)
    mutable = [node for node in nodes if is_mutable(node)]
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
