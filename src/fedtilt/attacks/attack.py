"""Attacks: a share of the clients work against the others. Their settings, who attacks, poisoned training data,
and whether the rules of a run tolerate them.

Two kinds poison what an attacker trains on (`label_flip`, `backdoor`); the others forge what it sends
(`forged_updates`). Attackers have no test data, so that all metrics are over honest clients.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.config.setting_fields import check_table, setting
from fedtilt.data import Federation
from fedtilt.data.client_data import Clients
from fedtilt.data.dataset import Dataset
from fedtilt.data.inputs import Inputs
from fedtilt.data.naming import client_number
from fedtilt.errors import InputError
from fedtilt.math.aggregate import bad_count
from fedtilt.methods import Method
from fedtilt.methods.run_checks import tolerant_parts

if TYPE_CHECKING:
    from fedtilt.engine.settings import TrainSettings


KINDS = {  # what attackers do, and the paper
    "sign_flip": "send their update times −strength (Li et al., RSA, AAAI 2019, arXiv 1811.03761)",
    "scale": "send their update times strength (Bagdasaryan et al., AISTATS 2020, arXiv 1807.00459)",
    "gaussian": "send noise of standard deviation strength as their update (Blanchard et al., 2017, arXiv 1703.02757)",
    "same_value": "send an update whose entries are all strength (Li et al., RSA, AAAI 2019, arXiv 1811.03761)",
    "alie": "send the honest mean minus strength standard deviations (Baruch et al., A Little Is Enough, NeurIPS 2019, "
    "arXiv 1902.06156)",
    "ipm": "send the honest mean times −strength: inner product manipulation (Xie et al., UAI 2019, arXiv 1903.03936)",
    "mimic": "all send the update of the same honest client (Karimireddy et al., ICLR 2022, arXiv 2006.09365)",
    "label_flip": "train on labels that are all wrong, class k becomes k + 1 (Tolpegin et al., 2020, arXiv "
    "2007.08432), and send their update times strength",
    "backdoor": "train on images with a white square in a corner and the target class (Gu et al., BadNets, 2017, arXiv "
    "1708.06733), and send their update times strength (Bagdasaryan et al., AISTATS 2020, arXiv 1807.00459)",
}
POISONING = ("label_flip", "backdoor")
STRENGTH = {
    "sign_flip": 1.0, "scale": 10.0, "gaussian": 1.0, "same_value": 1.0, "alie": 1.5, "ipm": 2.0, "label_flip": 1.0,
    "backdoor": 1.0,
}  # fmt: skip
_POISONED = 0.5


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Which clients attack, how and from when on.

    >>> Attack(kind="alie").strength
    1.5
    """

    kind: str = setting(None, "what attackers do; default: there are none", choices=KINDS, example="alie")
    share: float | None = setting(None, "the share of clients that attack; default: 0.2", gt=0, lt=1, example=0.2)
    clients: tuple[str, ...] = setting(
        (), "the names of the clients that attack, in place of share", allowed="a list of names, such as ['3', '7']"
    )
    strength: float | None = setting(
        None,
        "a factor of the update (sign_flip, scale, label_flip, backdoor) or of the honest mean (ipm), standard "
        "deviations (alie) "
        f"or a value (gaussian, same_value); default: {', '.join(f'{k} {v:g}' for k, v in STRENGTH.items())}",
        gt=0,
        example=1.5,
    )
    search: bool = setting(
        False,
        "whether alie and ipm choose, in every round, the strength that moves the aggregated model furthest from the "
        "honest mean; attackers then know the aggregation rule",
    )
    target: str | None = setting(None, "the class that backdoor makes models predict; default: the first", example="0")
    poisoned: float | None = setting(
        None, "the share of an attacker's samples with backdoor's trigger; default: 0.5", gt=0, le=1, example=0.5
    )
    from_round: int = setting(1, "the first round of the attack", ge=1)
    defaulted: ClassVar[tuple[str, ...]] = ()  # of an attack: the settings that its kind has decided

    def __post_init__(self) -> None:
        if self.kind is None:
            raise InputError(f"attack needs kind, one of {', '.join(KINDS)}")
        check_table(self, "attack")
        uses = {
            "share": not self.clients,
            "strength": self.kind in STRENGTH and not self.search,
            "search": self.kind in ("alie", "ipm"),
            "target": self.kind == "backdoor",
            "poisoned": self.kind == "backdoor",
        }
        for key, has_effect in uses.items():
            if getattr(self, key) and not has_effect:
                beside = "clients" if key == "share" else "search" if key == "strength" and self.search else "kind"
                raise InputError(
                    f"attack.{key} = {getattr(self, key)!r} has no effect with {beside} = {getattr(self, beside)!r}; "
                    "leave it out"
                )
        defaults = {"share": 0.2, "strength": STRENGTH.get(self.kind), "poisoned": _POISONED}
        defaulted = tuple(key for key in defaults if getattr(self, key) is None and uses[key])
        for key in defaulted:
            object.__setattr__(self, key, defaults[key])
        object.__setattr__(self, "defaulted", defaulted)

    def check_rounds(self, rounds: int) -> None:
        """Raise InputError if the attack starts after the last round."""
        if self.from_round > rounds:
            raise InputError(
                f"attack.from_round = {self.from_round} is after the last round, {rounds}; choose an earlier one, or "
                "leave the attack out"
            )

    def attackers(self, client_names: Sequence[str], seed: int) -> list[int]:
        """The numbers of the clients that attack."""
        count = len(client_names)
        if self.clients:
            chosen = sorted({client_number(name, tuple(client_names)) for name in self.clients})
        else:
            assert self.share is not None
            chosen = seeds.choose(seeds.key(seed, "attack/clients"), count, max(1, int(self.share * count + 0.5)))
        if len(chosen) >= count:
            which = f"clients = {list(self.clients)}" if self.clients else f"share = {self.share:g}"
            raise InputError(f"attack.{which} leaves no honest client of {count}; choose fewer attackers")
        return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackedFederation(Federation):
    """A federation some of whose clients attack: they have no test or validation data, and may have poisoned labels."""

    attack: Attack
    attackers: tuple[int, ...]  # ascending

    @classmethod
    def of(cls, federation: Federation, attack: Attack, seed: int) -> Self:
        """The federation with attackers, chosen by the seed."""
        attackers = attack.attackers(federation.client_names, seed)
        target = attack.target
        if attack.kind in POISONING and federation.target is not None:
            words = federation.target.words
            raise InputError(f"attack.kind = {attack.kind!r} changes classes, and the data has {words}")
        if attack.kind in POISONING and federation.classes < 2:
            raise InputError(f"attack.kind = {attack.kind!r} needs two classes or more, and the data has one")
        if attack.kind == "backdoor" and not federation.image:
            raise InputError(f"attack.kind = 'backdoor' needs images, and {federation.dataset.name!r} has none")
        if target is not None and target not in federation.class_names:
            raise InputError(
                f"attack.target = {target!r} is no class of the data, which has {', '.join(federation.class_names)}"
            )
        empty = torch.zeros(0, dtype=torch.int64)
        kept = {field.name: getattr(federation, field.name) for field in fields(Federation)}
        for key in ("test_index", "validation_index"):
            kept[key] = [empty if client in attackers else rows for client, rows in enumerate(kept[key])]
        if not any(map(len, kept["test_index"])):
            raise InputError("no honest client has test data; choose fewer attackers, or another seed")
        return cls(**kept, attack=attack, attackers=tuple(attackers))

    @property
    def target_class(self) -> int:
        """The number of the class that a backdoor makes models predict."""
        return 0 if self.attack.target is None else self.class_names.index(self.attack.target)

    def train(
        self, client: Clients, *, seed: int, round: int, device: torch.device | str = "cpu", rows: Tensor | None = None
    ) -> tuple[Inputs, Tensor]:
        """Training samples and labels in one round, or these rows of them; an attacker's are poisoned."""
        x, y = super().train(client, seed=seed, round=round, device=device, rows=rows)
        numbers = self._numbers(client)
        if round < self.attack.from_round or self.attack.kind not in POISONING or not {*numbers} & {*self.attackers}:
            return x, y
        owner, _ = seeds.owners_and_positions([len(self.train_index[number]) for number in numbers])
        poisoned = torch.tensor([number in self.attackers for number in numbers])[owner].to(y.device)
        if self.attack.kind == "backdoor":
            assert self.attack.poisoned is not None
            drawn = [
                seeds.uniform(seeds.key(seed, "attack/samples", client=number), (len(self.train_index[number]),))
                for number in numbers
            ]
            poisoned &= (torch.cat(drawn) < self.attack.poisoned).to(y.device)
        poisoned = poisoned if rows is None else poisoned[rows]
        if self.attack.kind == "label_flip":
            return x, torch.where(poisoned, (y + 1) % self.classes, y)
        assert isinstance(x, Tensor)
        x = torch.where(poisoned.reshape(-1, 1, 1, 1), with_trigger(x, 1.0), x)
        return x, torch.where(poisoned, self.target_class, y)

    def with_triggers(self) -> "AttackedFederation":
        """The same federation with the trigger on every test image of another class, and the target class as its label.

        The share of correct predictions is then the success of the backdoor.
        """
        data, target = self.dataset, self.target_class
        assert isinstance(data.x_test, Tensor)
        white = 255 if data.x_test.dtype == torch.uint8 else 1.0
        changed: Dataset = replace(
            data, x_test=with_trigger(data.x_test, white), y_test=torch.full_like(data.y_test, target)
        )
        rows = [index[data.y_test[index] != target] for index in self.test_index]
        return replace(self, dataset=changed, test_index=rows)


def with_trigger(images: Tensor, white: float) -> Tensor:
    """Images (N, channels, height, width) with a white square of a ninth of their height in the lower right corner."""
    side = max(2, round(images.shape[-2] / 9))
    changed = images.clone()
    changed[..., -side:, -side:] = white
    return changed


def check_tolerated(
    methods: Sequence[Method], attackers: Collection[int], clients: int, settings: "TrainSettings"
) -> tuple[str, ...]:
    """Raise InputError if a rule is set for fewer bad clients than attack; name rounds that have more by chance."""
    notices = []
    share, count = len(attackers) / clients, settings.clients_per_round(clients)
    secret = settings.privacy is not None and settings.privacy.randomness == "secret"
    for m in methods:
        shares = [part.bad_share for part in tolerant_parts(m)]
        if not shares:
            continue
        bad_share = min(shares)
        if share > bad_share + 1e-9:
            raise InputError(
                f"bad_share = {bad_share:g} of method {m.name!r} is less than the {len(attackers)} of {clients} "
                f"clients that attack; use bad_share ≥ {share:.2g}, or fewer attackers"
            )
        tolerated = bad_count(bad_share, count)
        if count < clients and not secret:
            rounds = range(1, settings.rounds + 1)
            more = sum(len(set(settings.selected(r, clients)) & set(attackers)) > tolerated for r in rounds)
            if more:
                notices.append(
                    f"method {m.name!r} tolerates {tolerated} bad of {count} clients in a round, and {more} of "
                    f"{settings.rounds} rounds have more attackers by chance; raise bad_share or participation"
                )
    return tuple(notices)
