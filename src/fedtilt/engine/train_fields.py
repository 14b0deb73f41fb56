"""The one list of the training settings: `ft.run`, `ft.simulate` and the `[train]` table of a spec take these."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fedtilt.attacks.attack import Attack
from fedtilt.config.setting_fields import setting
from fedtilt.devices import DEVICES, device_name
from fedtilt.losses import LOSSES
from fedtilt.methods import COMPONENTS
from fedtilt.optimizers import OPTIMIZERS, SGD
from fedtilt.parts import BUFFER_MODES
from fedtilt.privacy.privacy import Privacy
from fedtilt.schedules import SCHEDULES, Constant
from fedtilt.stopping import STOPS
from fedtilt.training import BACKENDS, LAST_BATCH

PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TrainFields:
    """Every training setting with its type, limits, default and meaning; `TrainSettings` has what they do."""

    rounds: int = setting(50, "how many rounds", ge=1, heading="Rounds and local steps")
    participation: float = setting(0.1, "the share of clients that take part in a round", gt=0, le=1)
    epochs: int = setting(10, "passes of a client over its data in a round", ge=1, only_with={"local_steps": [None]})
    batch_size: int = setting(10, "samples per step", ge=1)
    micro_batch_size: int | None = setting(
        None, "samples in memory at once: a step accumulates the gradients of its batch from parts of this size, "
        "with the same result; default: the whole batch", ge=1, example=4,
    )  # fmt: skip
    last_batch: str = setting(
        "even",
        "how an epoch is split: even batches, a smaller last batch (keep), or without it (drop)",
        choices=LAST_BATCH,
    )
    transform: Any = setting(
        None,
        "augments what is trained on: a function of the inputs of a batch that returns inputs like them, with random "
        "numbers of torch; default: none",
        allowed="package.module:function",
        example="augment:flip",
    )
    lr: float = setting(0.01, "learning rate of the shared model", gt=0)
    lr_personal: float | None = setting(None, "learning rate of the personal models; default: lr", gt=0, example=0.01)
    local_steps: int | None = setting(
        None, "steps of a client in a round, in place of epochs; default: epochs", ge=1, example=20
    )
    optimizer: Any = setting(
        SGD(),
        "the optimiser; its state is new in every round",
        named=OPTIMIZERS,
        own="torch.optim.NAME",
        heading="The optimiser on the clients",
    )
    momentum: float = setting(0.0, "momentum of sgd, unless its table has it", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay of the optimiser, unless its table has it", ge=0)
    schedule: Any = setting(
        Constant(),
        "how the learning rates change over the rounds",
        named=SCHEDULES,
        heading="The learning rates over the rounds",
    )
    loss: Any = setting(
        None,
        "the loss of a sample, which the tilts act on; your own is a function of outputs and targets that returns one "
        "value per sample; default: cross_entropy, squared with numbers as targets, token_cross_entropy with tokens, "
        "label_cross_entropy with several labels",
        named=LOSSES,
        own="package.module:function",
        example="focal",
        heading="The loss",
    )
    label_smoothing: float = setting(0.0, "label smoothing of cross_entropy, unless its table has it", ge=0, lt=1)
    local: tuple[str, ...] = setting(
        (),
        "parameters of the shared model that stay on their client and are never averaged",
        allowed='a list of patterns of names, such as ["head.*"]',
        heading="The parts of the model and its start",
    )
    buffers: str = setting(
        "local",
        "buffers such as the statistics of BatchNorm: every client keeps its own (local), the server averages them "
        "(average), or they never change (frozen)",
        choices=BUFFER_MODES,
    )
    init: str | nn.Module | None = setting(
        None,
        "the weights that every model starts from; default: those that the model is built with",
        example="weights.safetensors",
        allowed="a safetensors file",
    )
    server_optimizer: Any = setting(
        None,
        "takes aggregated − received as a step (FedOpt); default: the aggregated model is the next one",
        named=COMPONENTS["optimizer"],
        own="module:Class",
        example="adam",
        heading="The optimiser on the server",
    )
    screen: float | None = setting(
        None,
        "compare everything that a client sends with the others of its round: what is longer than this many times the "
        "median counts as ordinary, what stands out more, or for rounds, is rejected; 0: no screening; default: 0 in "
        "the simulator, 3 in a deployment",
        ge=0,
        example=3.0,
    )
    privacy: Privacy | None = setting(
        None,
        "client-level differential privacy, such as ft.Privacy(clip=1.0, epsilon=8, delta=1e-5); default: none",
        in_table=False,
    )
    attack: Attack | None = setting(
        None,
        "clients that work against the others, such as ft.Attack(kind='alie', share=0.2); default: none",
        in_table=False,
    )
    audit: bool = setting(False, "whether to collect, for every sample, what fedtilt audit needs to find wrong labels")
    seed: int = setting(0, "the seed that all random numbers depend on, the first of several", ge=0, in_table=False)
    eval_every: int | None = setting(
        None,
        "rounds between two evaluations; default: about fifty evaluations a run",
        ge=1,
        example=5,
        heading="Evaluation and speed",
    )
    stop: Any = setting(
        None,
        "when the run ends before its last round, by its validation data; default: never",
        named=STOPS,
        example="patience",
    )
    baselines: bool | None = setting(
        None,
        "whether to end with what the methods are compared with: the majority class or the mean, every client alone "
        "and, of tables, scikit-learn on all clients' rows; default: true in a spec for data of your own, else when "
        "result.baselines is used",
        example=True,
    )
    device: str = setting(
        "auto",
        "the device to train on; auto: CUDA if available; cuda:all: all GPUs of this machine",
        allowed=DEVICES,
        convert=device_name,
        in_table=False,
    )
    backend: str = setting(
        "auto",
        "what trains the models; autograd supports any model, the others are faster; native needs a C compiler",
        choices=("auto", *BACKENDS),
    )
    workers: int | None = setting(
        None,
        "worker processes; default: on a CPU one per core; on a GPU none, up to four for a long run that cannot be "
        "stacked; on a cluster one per CPU or GPU; 0: none",
        ge=0,
        example=2,
    )
    stack_size: int | None = setting(
        None,
        "clients that a GPU trains together; default: all of a round or, on a cluster, the share of a worker",
        ge=1,
        example=16,
    )
    cluster: str | None = setting(
        None,
        "the Ray cluster that trains the clients: host:port of its head node, or auto for the one that this machine "
        "belongs to; default: this machine",
        example="auto",
    )
    cluster_timeout: float = setting(600.0, "seconds to wait for a worker when the cluster has none", gt=0)
    precision: str = setting(
        "float32",
        "precision of products on CUDA; tf32 and bfloat16 are faster; models, losses and averages are float32",
        choices=PRECISIONS,
    )
