"""Which rule withstands which attack on which division: ten clients of digits, two of them bad.

python -m benchmarks.divisions                     # a few minutes of one core for a seed; bench-results/divisions.json
python -m benchmarks.divisions --quick             # one attack, two rounds: seconds
python -m benchmarks.divisions --data mnist --first-seed 10 --seeds 2    # held out: two classes a client, fewer rules
python -m benchmarks.page --record bench-results/divisions.json   # record the result and write docs/attacks.md

Every run is saved when it ends; the same command continues after an interruption.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

import fedtilt as ft
from benchmarks.attacks import HIDDEN, LARGEST_SUCCESS, SHARE, bad_clients, measure_rules
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.markdown import markdown_table
from benchmarks.options import result_file
from fedtilt.config.setting_fields import setting
from fedtilt.math.mixing import mix
from fedtilt.methods import ServerRound
from fedtilt.methods.aggregators import FLTrust, MultiKrum, Rooted, RootSelected, TrimmedMean
from fedtilt.methods.before import NNM, Before, Prepared

TRAIN = {"rounds": 30, "participation": 1.0, "epochs": 2, "batch_size": 10, "lr": 0.05}
DIVISIONS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "Dirichlet 1": {"partition": "dirichlet", "alpha": 1.0},
    "two classes": {"classes_per_client": 2},
}
CLIENTS, MU = 10, 0.01
NONE, BACKDOOR = "none", "backdoor"
ATTACKS = {
    NONE: ft.Attack(kind="backdoor", share=SHARE, poisoned=1e-12),  # of no sample: how often the trigger works anyway
    "label_flip": ft.Attack(kind="label_flip", share=SHARE),
    "label_flip × 2.9": ft.Attack(kind="label_flip", share=SHARE, strength=2.9),
    "sign_flip": ft.Attack(kind="sign_flip", share=SHARE),
    "mimic": ft.Attack(kind="mimic", share=SHARE),
    "alie": ft.Attack(kind="alie", share=SHARE),
    "ipm": ft.Attack(kind="ipm", share=SHARE),
    "ipm, strongest": ft.Attack(kind="ipm", share=SHARE, search=True),
    BACKDOOR: ft.Attack(kind="backdoor", share=SHARE),
}
HONEST_ALONE, ROOT_ALONE = "(honest clients alone)", "(root set alone)"
WITH_ROOT = ("fltrust", "root_selected")
PERSONAL = ("fedtilt, screened: personal",)
HELD_OUT = ("mnist", "fashion-mnist")  # data that no rule was chosen by: for the rules and attacks that matter
HELD_OUT_RULES = (HONEST_ALONE, ROOT_ALONE, "mean", "nnm + trimmed_mean", *WITH_ROOT, "screened")
HELD_OUT_ATTACKS = (NONE, "label_flip × 2.9", "sign_flip", "mimic", "ipm, strongest", BACKDOOR)
HELD_OUT_SAMPLES = 150  # of a client: about as many as of digits
ROOT_SAMPLES = 100
LARGEST_COST = 2.0  # points of accuracy without attackers that a rule may cost, to be recommended


@dataclass(frozen=True)
class HonestAlone(Before):
    """Only the models of clients that are known to be honest: what the best exclusion reaches."""

    rule: ClassVar[str] = "honest_alone"
    bad: tuple[int, ...] = setting((), "the clients that are left out", allowed="a list of numbers", convert=tuple)

    def apply(self, models: Tensor, round: ServerRound, slot: Any) -> Prepared:
        """The models without those of the bad clients; all clients take part, so that row n is client n."""
        weights = torch.eye(len(models), dtype=torch.float64)[[n for n in range(len(models)) if n not in self.bad]]
        return Prepared(mix(models, weights), weights, slot)


@dataclass(frozen=True)
class RootAlone(Rooted):
    """The model that the server trains on its root set, whatever clients send."""

    rule: ClassVar[str] = "root_alone"

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        assert round.root is not None
        return round.root


def rules(bad: Sequence[int], screened: bool) -> list[ft.Method]:
    """The rules of the table; those that are screened as in a deployment, or those that are not."""
    nnm, trimmed, krum = NNM(SHARE), TrimmedMean(SHARE), MultiKrum(SHARE)
    if screened:
        return [
            ft.fedavg(name="screened"),
            ft.fedavg(name="screened, multi_krum", aggregator=krum),
            ft.fedavg(name="screened, nnm + trimmed_mean", before=[nnm], aggregator=trimmed),
            ft.fedtilt(name=PERSONAL[0], tau=1.0, lam=0.0, mu=MU),
        ]
    return [
        ft.fedavg(name=HONEST_ALONE, before=[HonestAlone(tuple(bad))]),
        ft.fedavg(name=ROOT_ALONE, aggregator=RootAlone(ROOT_SAMPLES)),
        ft.fedavg(name="mean"),
        ft.fedavg(name="norm_clipped", aggregator="norm_clipped"),
        ft.fedavg(name="median", aggregator="median"),
        ft.fedavg(name="trimmed_mean", aggregator=trimmed),
        ft.fedavg(name="multi_krum", aggregator=krum),
        ft.fedavg(name="nnm + trimmed_mean", before=[nnm], aggregator=trimmed),
        ft.fedavg(name="clipping + nnm + trimmed_mean", before=["clipping", nnm], aggregator=trimmed),
        ft.fedavg(name="momentum, nnm + trimmed_mean", client_momentum=0.9, before=[nnm], aggregator=trimmed),
        ft.methods.foundationfl(name="foundation + median"),
        ft.fedavg(name="bucketing + geometric_median", before=["bucketing"], aggregator="geometric_median"),
        ft.fedavg(name="fltrust", aggregator=FLTrust(ROOT_SAMPLES)),
        ft.fedavg(name="root_selected", aggregator=RootSelected(ROOT_SAMPLES, SHARE)),
    ]


def measure_case(data: str, train: Mapping[str, Any], case: Case) -> Case:
    """The case with what its rules reach."""
    seed, division = case["seed"], DIVISIONS[case["division"]]
    if data in HELD_OUT:
        division = division | {"max_train": HELD_OUT_SAMPLES}
    federation = ft.Federation.build(ft.data.load(data), clients=CLIENTS, seed=seed, **division)
    bad = bad_clients(federation, seed)

    def of_screen(screened: bool) -> list[ft.Method]:
        return [m for m in rules(bad, screened) if data not in HELD_OUT or m.name in HELD_OUT_RULES]

    return case | {"rules": measure_rules(of_screen, federation, ATTACKS[case["attack"]], seed, train)}


def accuracies(cases: Sequence[Mapping[str, Any]], division: str) -> dict[str, dict[str, float]]:
    """Rule → attack → accuracy in %, mean over seeds; 0 if one diverged. With "success" and, of `NONE`, "trigger"."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for case in (case for case in cases if case["division"] == division):
        for rule, values in case["rules"].items():
            by_attack = found.setdefault(rule, {})
            by_attack.setdefault(case["attack"], []).append(values["accuracy"])
            if case["attack"] in (NONE, BACKDOOR) and "success" in values:
                by_attack.setdefault({NONE: "trigger", BACKDOOR: "success"}[case["attack"]], []).append(
                    values["success"]
                )
    return {rule: {attack: _mean(each) for attack, each in of.items()} for rule, of in found.items()}


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else 0.0


def worst(of_rule: Mapping[str, float]) -> float:
    """The least accuracy of a rule, over all attacks that were measured."""
    return min(of_rule[attack] for attack in ATTACKS if attack != NONE and attack in of_rule)


def table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Rule × attack × division."""
    heads = [attack for attack in ATTACKS if attack != NONE]
    rows = [["division", "rule", NONE, *heads, "worst", "trigger", "success"]]
    for division in DIVISIONS:
        found = accuracies(cases, division)
        for rule, of in found.items():
            most = max(worst(each) for name, each in found.items() if name in ranked(found))
            least = _cell(worst(of)) if rule not in ranked(found) or worst(of) < most else f"**{_cell(worst(of))}**"
            success = f"{of['success']:.0f} %" if of["success"] > LARGEST_SUCCESS else f"**{of['success']:.0f} %**"
            cells = [_cell(of[attack]) for attack in (NONE, *heads)]
            rows.append([division, rule, *cells, least, f"{of['trigger']:.0f} %", success])
    return markdown_table(rows, text_columns=2)


def _cell(accuracy: float) -> str:
    return f"{accuracy:.1f}" if accuracy else "diverges"


def ranked(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The rules that give one shared model and exist outside of this benchmark."""
    return [rule for rule in found if rule not in (HONEST_ALONE, ROOT_ALONE, *PERSONAL)]


def summary(cases: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on every division: the best shared models, and personal ones."""
    lines = []
    for division in DIVISIONS:
        found = accuracies(cases, division)
        without = [rule for rule in ranked(found) if rule not in WITH_ROOT]
        affordable = [rule for rule in without if found[rule][NONE] >= found["mean"][NONE] - LARGEST_COST]
        best, best_rooted = (max(of, key=lambda rule: worst(found[rule])) for of in (affordable, WITH_ROOT))
        personal = found[PERSONAL[0]]
        withstand = [f"`{rule}`" for rule in without if found[rule]["success"] <= LARGEST_SUCCESS]
        lines.append(
            f"* **{division}**: without a root set, the best worst case of a rule that costs at most {LARGEST_COST:g} "
            f"points without attackers is that of {_of(best, found)}; the default, `screened`, has "
            f"{worst(found['screened']):.1f}. With a root set: {_of(best_rooted, found)}. Backdoors of at most "
            f"{LARGEST_SUCCESS:.0f} %: {', '.join(withstand) or 'no rule'} among those without a root set. Personal "
            f"models: {personal[NONE]:.1f} without attackers, {worst(personal):.1f} at worst, backdoors "
            f"{personal['success']:.0f} %."
        )
    return "\n".join(lines)


def _of(rule: str, found: Mapping[str, Mapping[str, float]]) -> str:
    return f"`{rule}`, {worst(found[rule]):.1f} ({found[rule][NONE]:.1f} without attackers)"


def render(record: Mapping[str, Any] | None) -> str:
    """The section of docs/attacks.md."""
    if record is None:
        return "Not recorded yet."
    cases = record["cases"]
    seeds = sorted({case["seed"] for case in cases})
    shown = {"clients": CLIENTS, "bad": math.floor(CLIENTS * SHARE), **record["train"], "hidden units": HIDDEN[0]}
    setting = ", ".join(f"{key} {value}" for key, value in shown.items())
    measured = "; and with ".join(dict.fromkeys(case["measured"] for case in cases))
    return "\n\n".join(
        [
            f"digits: {setting}, root samples {ROOT_SAMPLES}, seeds {len(seeds)}.",
            table(cases).strip(),
            summary(cases),
            f"Measured with {measured}.",
        ]
    )


def render_held_out(records: Mapping[str, Any]) -> str:
    """The table of data that no rule was chosen by, in docs/attacks.md."""
    rows = [["data", "rule", *HELD_OUT_ATTACKS, "worst", "success"]]
    seeds: set[int] = set()
    measured: dict[str, None] = {}
    for data in HELD_OUT:
        cases = records[kind_of(data)]["cases"] if kind_of(data) in records else []
        seeds |= {case["seed"] for case in cases}
        measured |= dict.fromkeys(case["measured"] for case in cases)
        for rule, of in accuracies(cases, list(DIVISIONS)[-1]).items():
            cells = [_cell(of[attack]) for attack in HELD_OUT_ATTACKS]
            rows.append([data, rule, *cells, _cell(worst(of)), f"{of['success']:.0f} %"])
    if not seeds:
        return "Not recorded yet."
    about = f"Seeds {', '.join(map(str, sorted(seeds)))}. Measured with {'; and with '.join(measured)}."
    return f"{markdown_table(rows, text_columns=2).strip()}\n\n{about}"


def kind_of(data: str) -> str:
    """The kind of the result on a data set."""
    return f"divisions-{data}" if data in HELD_OUT else "divisions"


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--data", choices=("digits", *HELD_OUT), default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    train, seeds, attacks, divisions = TRAIN, options.seeds, list(ATTACKS), list(DIVISIONS)
    if options.data in HELD_OUT:
        attacks, divisions = list(HELD_OUT_ATTACKS), divisions[-1:]
    if options.quick:
        train, seeds, attacks, divisions = TRAIN | {"rounds": 2}, 1, attacks[:2], divisions[-1:]
    header = {"data": options.data, "divisions": DIVISIONS, "train": train, "hidden": list(HIDDEN), "share": SHARE}
    numbers = range(options.first_seed, options.first_seed + seeds)
    cases = [
        {"division": division, "seed": seed, "attack": attack}
        for seed, division, attack in product(numbers, divisions, attacks)
    ]
    kind = kind_of(options.data)
    with result_file(options, kind) as path:
        jobs = 1 if options.quick else options.jobs
        for case in run_cases(kind, cases, partial(measure_case, options.data, train), header, jobs, path):
            found = ", ".join(f"{name} {of['accuracy']}" for name, of in case["rules"].items())
            print(f"{case['division']}, seed {case['seed']}, {case['attack']}: {found}", flush=True)


if __name__ == "__main__":
    main()
