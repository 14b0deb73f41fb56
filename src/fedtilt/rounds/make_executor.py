"""The executor of a run: in this process, or in forked workers."""

from fedtilt.errors import InputError
from fedtilt.rounds.executors import BatchSettings, Executor, InProcessExecutor
from fedtilt.rounds.forked import ForkedExecutor, can_fork, cores
from fedtilt.rounds.prepare import PreparedRun, example_jobs


def make_executor(prepared: PreparedRun) -> Executor:
    """The executor that the settings of a run ask for; by default, the fastest on this machine."""
    federation, settings, device = prepared.federation, prepared.settings, prepared.device
    backend, batch_settings = prepared.backend.name, BatchSettings.of(settings)
    workers = settings.workers
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
        return InProcessExecutor(federation, prepared.net, backend, batch_settings, device, settings.precision)
    jobs = example_jobs(prepared.methods, prepared.parts, settings, federation.group)
    return ForkedExecutor(federation, prepared.net, backend, batch_settings, workers, jobs)
