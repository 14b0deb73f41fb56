"""For every key of a spec: another value, and the keys beside which it has an effect."""

from dataclasses import dataclass, field
from typing import Any

Keys = dict[str, Any]  # dotted key → value; None: left out


@dataclass(frozen=True)
class Case:
    """Another value of a key, on top of some keys; `also` are keys that change with it."""

    value: Any
    base: Keys = field(default_factory=dict)
    also: Keys = field(default_factory=dict)


PLAIN: Keys = {  # six clients of unequal size in a round, two rounds, one method with personal models
    "name": "plain",
    "device": "cpu",
    "clients.count": 30,
    "model.hidden": [6],
    "train.rounds": 2,
    "train.participation": 0.2,
    "train.epochs": 1,
    "train.batch_size": 20,
    "train.lr": 0.1,
    "train.workers": 0,
    "methods.preset": "fedtilt",
    "methods.tau": 1.0,
    "methods.lam": 1.0,
    "methods.mu": 0.1,
}
OWN_CLIENTS: Keys = {
    "clients.count": None, "train.participation": 0.5, "train.batch_size": 5, "train.baselines": False,
}  # fmt: skip
TABLE: Keys = OWN_CLIENTS | {"data.file": "table.csv", "data.target": "ill", "data.client": "site"}
MESSY: Keys = TABLE | {"data.file": "messy.csv", "data.decimal": "."}
IMAGES: Keys = OWN_CLIENTS | {"data.images": "images"}
FLIPS: Keys = {"outliers.kind": "flips"}
PRIVACY: Keys = {"privacy.clip": 0.1, "privacy.noise": 2.0, "privacy.delta": 0.001}
ATTACK: Keys = {"attack.kind": "sign_flip", "attack.share": 0.5}
STOPPING: Keys = {"clients.validation": 0.3, "train.rounds": 8, "train.eval_every": 1, "train.lr": 1.0}
BACKDOOR: Keys = {"attack.kind": "backdoor", "attack.share": 0.5}


def method(**settings: Any) -> Keys:
    """The settings of another method in place of those of `PLAIN`."""
    names = {f"methods.{key}": None for key in ("tau", "lam", "mu")}
    return names | {f"methods.{key}": value for key, value in settings.items()}


AGAIN: Keys = {  # all clients take part every time, in two steps a round
    "clients.count": 6, "clients.max_train": 40, "train.participation": 1.0, "train.rounds": 3,
}  # fmt: skip
CUSTOM = method(preset="custom", personal={"mu": 0.1})
FEDAVG = method(preset="fedavg")
CASES: dict[str, Case] = {
    "seed": Case(1),
    "seeds": Case(2),
    "task": Case("regression", TABLE),
    "data.name": Case("toy-2", {"clients.count": None, "train.participation": 0.05}),
    "data.file": Case("table.csv", also=TABLE),
    "data.target": Case("smoker", TABLE),
    "data.client": Case("site", TABLE | {"data.client": None, "clients.count": 4}),
    "data.group": Case("smoker", TABLE),
    "data.group_is_input": Case(False, TABLE | {"data.group": "smoker"}),
    "data.weight": Case("visits", TABLE),
    "data.drop": Case(["age"], TABLE),
    "data.drop_unlabelled": Case(True, TABLE, also={"data.file": "unlabelled.csv"}),
    "data.split": Case("proportional", TABLE),
    "data.split_column": Case("fold", TABLE),
    "data.split_group": Case("patient", TABLE),
    "data.time": Case("admitted", TABLE),
    "data.rename": Case({"age": "pressure", "pressure": "age"}, TABLE | {"data.schema": "schema.json"}),
    "data.missing": Case(["30"], TABLE),
    "data.find_missing": Case(False, MESSY),
    "data.decimal": Case(",", MESSY),
    "data.thousands": Case(".", MESSY, also={"data.decimal": None}),
    "data.encoding": Case("cp850", MESSY),
    "data.sheet": Case("second", TABLE | {"data.file": "book.xlsx", "data.sheet": "first"}),
    "data.ignore_case": Case(False, MESSY),
    "data.schema": Case("schema.json", TABLE),
    "data.images": Case("images", also=IMAGES),
    "data.image_size": Case(4, IMAGES),
    "data.image_channels": Case(3, IMAGES),
    "data.leaf": Case("leaf", also=OWN_CLIENTS),
    "data.test_share": Case(0.5, TABLE),
    "data.exclude": Case("suspects.csv", TABLE),
    "data.relabel": Case("suspects.csv", TABLE),
    "clients.count": Case(20),
    "clients.partition": Case("iid"),
    "clients.classes_per_client": Case(3),
    "clients.alpha": Case(2.0, {"clients.partition": "dirichlet"}),
    "clients.max_train": Case(10),
    "clients.leave_out": Case(["0"]),
    "clients.validation": Case(0.3),
    "clients.validation_outliers": Case(True, FLIPS | {"clients.validation": 0.3}),
    "outliers.kind": Case("flips"),
    "outliers.rate": Case(0.9, FLIPS),
    "outliers.strength": Case(0.1, {"outliers.kind": "gaussian"}),
    "outliers.clients": Case(0.3, FLIPS),
    "outliers.redraw": Case("once", FLIPS),
    "outliers.flip_to": Case("any", FLIPS),
    "outliers.pairs": Case({"1": "7", "7": "1"}, FLIPS),
    "model.name": Case("logistic", also={"model.hidden": None}),
    "model.arguments": Case({"width": 5}, {"model.name": "tests.effects.models:own", "model.hidden": None}),
    "model.hidden": Case([8]),
    "model.channels": Case([3], {"model.name": "cnn", "model.hidden": None, "model.channels": [2]}),
    "train.rounds": Case(3),
    "train.participation": Case(0.3),
    "train.epochs": Case(2),
    "train.batch_size": Case(7),
    "train.last_batch": Case("drop"),
    "train.lr": Case(0.2),
    "train.lr_personal": Case(0.05),
    "train.local_steps": Case(3, also={"train.epochs": None}),
    "train.optimizer": Case("adam"),
    "train.momentum": Case(0.5),
    "train.weight_decay": Case(0.1),
    "train.schedule": Case("cosine"),
    "train.stop": Case({"name": "patience", "rounds": 1}, STOPPING),
    "train.loss": Case("focal"),
    "train.label_smoothing": Case(0.3),
    "train.local": Case(["3.*"]),
    "train.buffers": Case("average", {"model.name": "tests.effects.models:normalised", "model.hidden": None}),
    "train.init": Case("start.safetensors"),
    "train.transform": Case("tests.effects.models:mirrored"),
    "train.server_optimizer": Case("adam"),
    "train.screen": Case(1.01),
    "train.audit": Case(True),
    "train.eval_every": Case(2),
    "train.baselines": Case(True),
    "privacy.clip": Case(0.2, PRIVACY),
    "privacy.noise": Case(3.0, PRIVACY),
    "privacy.epsilon": Case(2.0, PRIVACY),
    "privacy.delta": Case(0.002, PRIVACY),
    "privacy.randomness": Case("secret", PRIVACY),
    "attack.kind": Case("scale", ATTACK),
    "attack.share": Case(0.9, ATTACK),
    "attack.clients": Case(["0", "1", "2"], ATTACK | {"attack.share": None}),
    "attack.strength": Case(3.0, ATTACK),
    "attack.search": Case(True, {"attack.kind": "ipm", "attack.share": 0.3}),
    "attack.target": Case("3", BACKDOOR),
    "attack.poisoned": Case(1.0, BACKDOOR),
    "attack.from_round": Case(2, ATTACK),
    "methods.preset": Case("ditto", also=method()),
    "methods.name": Case("mine"),
    "methods.tau": Case(3.0),
    "methods.lam": Case(3.0),
    "methods.levels": Case([["class", 5.0]], also={"methods.tau": None}),
    "methods.t": Case(2.0, method(preset="term", t=1.0)),
    "methods.mu": Case(0.5),
    "methods.objective": Case({"rule": "propfair", "utility": 9.0}, CUSTOM),
    "methods.personal": Case({"mu": 0.5}, FEDAVG),
    "methods.training": Case("tests.effects.components:OneStep", FEDAVG),
    "methods.prox": Case(0.5, CUSTOM),
    "methods.alpha": Case(0.5, method(preset="feddyn")),
    "methods.correction": Case("scaffold", CUSTOM),
    "methods.utility": Case(9.0, method(preset="propfair", utility=5.0)),
    "methods.local": Case(["1.*"], method(preset="fedper")),
    "methods.head_epochs": Case(2, method(preset="fedrep", head_epochs=1)),
    "methods.inner_steps": Case(2, method(preset="pfedme", mu=1.0)),
    "methods.q": Case(5.0),
    "methods.aggregator": Case("median"),
    "methods.before": Case(["clipping"]),
    "methods.optimizer": Case("adam"),
    "methods.client_momentum": Case(0.5),
    "methods.lr": Case(0.05),
    "methods.lr_personal": Case(0.05),
    "methods.epochs_personal": Case(2),
    "methods.personal_start": Case("initial"),
    "methods.weighting": Case("samples"),
    "methods.weights_lr": Case(0.5, method(preset="afl")),
    "methods.weights_bound": Case(0.5, method(preset="fedmgda")),
    "methods.update_length": Case(2.0, method(preset="fedmgda")),
    "methods.scale": Case("silo", method(preset="aaggff")),
    "methods.response": Case("normal", method(preset="aaggff")),
    "methods.adaptive": Case(False, method(preset="apfl") | AGAIN),
    "methods.layers": Case(2, method(preset="fedala") | AGAIN),
    "methods.share": Case(0.25, method(preset="fedala") | AGAIN),
    "methods.rate": Case(0.1, method(preset="fedala") | AGAIN),
    "methods.align_lr": Case(0.5, method(preset="fedas") | AGAIN),
    "methods.kappa": Case(5.0, method(preset="feddbe") | AGAIN),
    "methods.momentum": Case(0.5, method(preset="feddbe") | AGAIN),
    "methods.groups": Case(20, method(preset="fedminmax") | AGAIN),
    "methods.gamma": Case(0.0, method(preset="fedrod")),
    "methods.temperature": Case(0.2, method(preset="moon") | AGAIN),
}


@dataclass(frozen=True)
class ComponentCase:
    """Another value of a setting of a component, beside other settings of it and other keys of the run."""

    value: Any
    beside: Keys = field(default_factory=dict)
    base: Keys = field(default_factory=dict)


TWELVE: Keys = {"train.participation": 0.4}  # clients in a round
BUCKETS: Keys = {"methods.aggregator": "median"}
OPTIMIZER = {"lr": ComponentCase(0.5), "momentum": ComponentCase(0.5), "epsilon": ComponentCase(0.5)}
COMPONENT_CASES: dict[str, ComponentCase] = {  # component.rule.setting
    "objective.tilted.tau": ComponentCase(3.0),
    "objective.tilted.lam": ComponentCase(3.0),
    "objective.tilted.levels": ComponentCase([["class", 5.0]]),
    "objective.propfair.utility": ComponentCase(9.0, {"utility": 5.0}),
    "personal.proximal.mu": ComponentCase(0.5),
    "personal.proximal.start": ComponentCase("initial"),
    "personal.proximal.lr": ComponentCase(0.05),
    "personal.proximal.epochs": ComponentCase(2),
    "personal.moreau.mu": ComponentCase(2.0),
    "personal.moreau.inner_steps": ComponentCase(2),
    "personal.moreau.lr": ComponentCase(0.05),
    "local.local.names": ComponentCase(["1.*"]),
    "local.local.first_epochs": ComponentCase(2),
    "local.local.trains": ComponentCase(False),
    "correction.feddyn.alpha": ComponentCase(0.5),
    "weighting.loss.tilt": ComponentCase(2.0),
    "weighting.aaggff.scale": ComponentCase("silo"),
    "weighting.aaggff.response": ComponentCase("normal"),
    "training.apfl.alpha": ComponentCase(0.25, base=AGAIN),
    "training.apfl.adaptive": ComponentCase(False, base=AGAIN),
    "training.fedala.layers": ComponentCase(2, base=AGAIN),
    "training.fedala.share": ComponentCase(0.25, base=AGAIN),
    "training.fedala.rate": ComponentCase(0.1, base=AGAIN),
    "training.fedala.steady": ComponentCase(1e-6, base=AGAIN),
    "training.fedas.align_lr": ComponentCase(0.5, base=AGAIN),
    "training.feddbe.kappa": ComponentCase(5.0, base=AGAIN),
    "training.feddbe.momentum": ComponentCase(0.5, base=AGAIN),
    "training.fedminmax.lr": ComponentCase(0.5, base=AGAIN),
    "training.fedminmax.groups": ComponentCase(20, base=AGAIN),
    "training.fedrod.gamma": ComponentCase(0.0, base=AGAIN),
    "training.moon.mu": ComponentCase(0.5, base=AGAIN),
    "training.moon.temperature": ComponentCase(0.2, base=AGAIN),
    "before.foundation.share": ComponentCase(0.25, base=TWELVE | BUCKETS),
    "weighting.afl.lr": ComponentCase(0.5),
    "before.clipping.radius": ComponentCase(0.01),
    "before.nnm.bad_share": ComponentCase(0.4, {"bad_share": 0.2}),
    "before.bucketing.size": ComponentCase(3, base=BUCKETS),
    "aggregator.tilted.q": ComponentCase(5.0),
    "aggregator.tilted.distance": ComponentCase("l2"),
    "aggregator.tilted.steps": ComponentCase([2, 0.1]),
    "aggregator.trimmed_mean.bad_share": ComponentCase(0.4, {"bad_share": 0.2}),
    "aggregator.krum.bad_share": ComponentCase(0.35, base=TWELVE),
    "aggregator.multi_krum.bad_share": ComponentCase(0.4, {"bad_share": 0.2}),
    "aggregator.bulyan.bad_share": ComponentCase(0.2, base=TWELVE),
    "aggregator.norm_clipped.radius": ComponentCase(0.01),
    "aggregator.centered_clipping.radius": ComponentCase(0.01),
    "aggregator.fltrust.root_samples": ComponentCase(20),
    "aggregator.root_selected.root_samples": ComponentCase(20, {"bad_share": 0.2}),
    "aggregator.root_selected.bad_share": ComponentCase(0.4, {"bad_share": 0.2}),
    "aggregator.q_ffl.exponent": ComponentCase(2.0),
    "aggregator.fedmgda.bound": ComponentCase(0.5),
    "aggregator.fedmgda.length": ComponentCase(2.0),
    "optimizer.sgd.lr": ComponentCase(0.5),
    "optimizer.sgd.momentum": ComponentCase(0.5),
    **{f"optimizer.{rule}.{key}": case for rule in ("adam", "yogi", "adagrad") for key, case in OPTIMIZER.items()},
}

LOSS = ComponentCase([5.0] + [1.0] * 9)
OBJECT_CASES: dict[str, ComponentCase] = {  # setting.name.setting, of objects of [train]
    "optimizer.sgd.momentum": ComponentCase(0.5),
    "optimizer.sgd.nesterov": ComponentCase(True, {"momentum": 0.5}),
    **{f"optimizer.{name}.weight_decay": ComponentCase(0.1) for name in ("sgd", "adam", "adamw")},
    **{f"optimizer.{name}.clip_norm": ComponentCase(1e-7) for name in ("sgd", "adam", "adamw")},
    **{f"schedule.{name}.warmup_rounds": ComponentCase(1) for name in ("constant", "cosine")},
    "schedule.exponential.warmup_rounds": ComponentCase(1, {"decay": 0.9}),
    "schedule.exponential.decay": ComponentCase(0.5, {"decay": 0.9}),
    "schedule.step.warmup_rounds": ComponentCase(1, {"decay": 0.5, "every": 1}),
    "schedule.step.decay": ComponentCase(0.5, {"decay": 0.9, "every": 1}),
    "schedule.step.every": ComponentCase(2, {"decay": 0.5, "every": 1}),
    "stop.patience.rounds": ComponentCase(2, {"rounds": 1}, STOPPING),
    "stop.patience.by": ComponentCase("worst", {"rounds": 1}, STOPPING),
    "stop.patience.restore_best": ComponentCase(True, {"rounds": 1}, STOPPING),
    **{f"loss.{name}.class_weights": LOSS for name in ("cross_entropy", "focal", "gce", "sce")},
    "loss.cross_entropy.label_smoothing": ComponentCase(0.3),
    "loss.focal.gamma": ComponentCase(0.5),
    "loss.gce.exponent": ComponentCase(0.3),
    "loss.sce.alpha": ComponentCase(0.7),
    "loss.sce.beta": ComponentCase(0.3),
    "loss.huber.delta": ComponentCase(0.1, base=TABLE | {"task": "regression"}),
}

# what changes where or how fast a run is computed, not its results; a test of its own sees where each value arrives
NOT_IN_RESULTS: dict[str, Case] = {
    "name": Case("other"),
    "device": Case("cuda"),
    "data.folder": Case("sets"),
    "train.backend": Case("autograd"),
    "train.micro_batch_size": Case(7),
    "train.workers": Case(1),
    "train.stack_size": Case(2, {"train.backend": "stacked"}),
    "train.cluster": Case("host:1", {"train.workers": None}),
    "train.cluster_timeout": Case(5.0, {"train.workers": None, "train.cluster": "host:1"}),
    "train.precision": Case("tf32"),
    "storage.checkpoint_seconds": Case(0.0),
    "storage.memory_limit_mb": Case(0),
}
