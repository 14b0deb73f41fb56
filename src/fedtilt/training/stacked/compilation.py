"""A function of tensors, compiled by torch, and kept in its cache for the next process."""

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from fedtilt.training.stacked.graph_passes import lift_constants, simplify

_COMPILE_SETTINGS = {
    "deterministic": True,  # sums take the same order in every process: no kernel is chosen by its time
    "triton.autotune_at_compile_time": False,  # on in `standalone_compile`: it runs each kernel once, on random numbers
    "triton.autotune_pointwise": False,  # to compile and time several variants of a kernel takes longer than it saves
    "triton.coalesce_tiling_analysis": False,
    # what takes long to compile, and changes next to nothing in the kernels of a ResNet
    "max_fusion_buffer_group_pairwise_attempts": 4,
    "loop_ordering_after_fusion": False,
    "pattern_matcher": False,
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
def compile_function(function: Callable[..., None], arguments: Sequence[Tensor]) -> Callable[..., None]:
    """A function of tensors, compiled for arguments of these shapes.

    `torch.compile` would trace Python first; its cache refuses what that gives for vmap, and every process would
    compile again. The graph of tensor operations is found in torch's cache.
    """
    import torch._inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    _set_cache_folder()
    known = torch._inductor.config.get_config_copy()
    newer = {name: value for name, value in _NEWER_COMPILE_SETTINGS.items() if name in known}
    with _prepare_triton() if arguments[0].is_cuda else contextlib.nullcontext():
        graph = make_fx(function, tracing_mode="fake")(*arguments)
    with torch.no_grad():
        constants = lift_constants(graph)
        simplify(graph)
        compiled = torch._inductor.standalone_compile(
            graph, [*arguments, *constants], dynamic_shapes="from_example_inputs",
            options={"config_patches": _COMPILE_SETTINGS | newer},
        )  # fmt: skip
    return lambda *arguments: compiled(*arguments, *constants)


@contextlib.contextmanager
def _prepare_triton() -> Iterator[None]:
    """Do meanwhile what compiling for Triton begins with: start processes, and hash Triton's files, over a second."""
    from torch._inductor.async_compile import maybe_warm_pool
    from torch._inductor.runtime.triton_compat import triton_key  # torch remembers its result

    maybe_warm_pool()
    with ThreadPoolExecutor(1) as thread:
        hashed = thread.submit(triton_key)
        yield
    hashed.result()


def _set_cache_folder() -> None:
    """Let torch keep compiled steps in the user's home; its default is a temporary folder, which may be emptied."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "fedtilt" / "torch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written to
        return
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
