"""The executor of a run: in this process, in forked workers, or on a cluster."""

from collections.abc import Callable

from fedtilt.engine.prepare import PreparedRun, example_jobs
from fedtilt.errors import InputError
from fedtilt.executors.forked import ForkedExecutor, can_fork, cores
from fedtilt.executors.in_process import BatchSettings, ClientTraining, Executor, InProcessExecutor
from fedtilt.executors.ray_executor import RayExecutor
from fedtilt.executors.sharded_models import uses_shards
from fedtilt.math.client_models import column_blocks


def make_executor(prepared: PreparedRun, notice: Callable[[str], None]) -> Executor:
    """The executor that the settings of a run ask for; by default, the fastest on this machine.

    Args:
        prepared: the run
        notice: called with messages for the user
    """
    federation, settings, device = prepared.federation, prepared.settings, prepared.device
    backend, workers = prepared.backend.name, settings.workers
    training = ClientTraining(federation, prepared.net, backend, BatchSettings.of(settings))
    if settings.on_cluster:
        shape = settings.clients_per_round(federation.clients), prepared.parts.shared_size
        on_nodes, columns = None, [slice(None)]
        if uses_shards(prepared.methods, settings, *shape):
            on_nodes, columns = True, column_blocks(*shape)
        elif settings.audit or settings.privacy is not None:  # needs the models here, or cannot repeat a round
            on_nodes = False
        return RayExecutor(
            training, device=device, precision=settings.precision,
            address=settings.cluster or "local", workers=workers, stack_size=settings.stack_size,
            timeout=settings.cluster_timeout, notice=notice, on_nodes=on_nodes, columns=columns,
        )  # fmt: skip
    if device.type != "cpu" or backend == "stacked":
        workers = 0
    elif workers is None:
        clients = settings.clients_per_round(federation.clients)
        workers = min(cores(), clients) if cores() > 1 and can_fork(backend) else 0
    elif workers and not can_fork(backend):
        raise InputError(
            f"workers = {workers} cannot be forked here (not Linux, a daemon, or autograd was used with a GPU); "
            "leave it out or set it to 0"
        )
    if workers == 0:
        return InProcessExecutor(training, device, settings.precision, settings.stack_size)
    jobs = example_jobs(prepared.methods, prepared.net, prepared.parts, settings, federation)
    return ForkedExecutor(training, workers, jobs)
