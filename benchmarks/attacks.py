"""Every aggregation rule against every attack: accuracy of honest clients, next to the same run without attackers.

python -m benchmarks.attacks                       # MNIST, 20 % attack; bench-results/attacks.json
python -m benchmarks.attacks --quick               # digits, one attack, two rounds: seconds
python -m benchmarks.page --record bench-results/attacks.json   # record the result and write docs/attacks.md

Every run is saved when it ends; the same command continues after an interruption.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import fedtilt as ft
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.markdown import markdown_table
from benchmarks.options import result_file
from benchmarks.screening import HELD_OUT_SITES, false_positives, poison
from fedtilt.attacks.attack import KINDS
from fedtilt.errors import Diverged
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.methods.aggregators import Bulyan, Krum, MultiKrum, TrimmedMean
from fedtilt.methods.before import NNM

TEMPLATE = Path(__file__).parent / "attacks.template.md"
SHARE = 0.2
LARGEST_LOSS = 2.0  # points that a rule may lose and still withstands an attack
LARGEST_SUCCESS = 10.0  # % of a backdoor that a rule withstands
HIDDEN = (50,)  # of the network
TRAIN = {"rounds": 30, "participation": 1.0, "epochs": 1, "batch_size": 32, "lr": 0.1}
DIVISIONS: dict[str, dict[str, Any]] = {
    "iid": {"clients": 20, "partition": "iid", "max_train": 500},
    "dirichlet": {"clients": 20, "partition": "dirichlet", "alpha": 1.0, "max_train": 500},
}

SCREEN = 3.0  # of the rules that are screened, as in a deployment
NONE = "none"
ATTACKS = {
    NONE: None,
    "alie": ft.Attack(kind="alie", share=SHARE),
    "ipm": ft.Attack(kind="ipm", share=SHARE),
    "alie, strongest": ft.Attack(kind="alie", share=SHARE, search=True),
    "ipm, strongest": ft.Attack(kind="ipm", share=SHARE, search=True),
    **{kind: ft.Attack(kind=kind, share=SHARE) for kind in KINDS if kind not in ("alie", "ipm")},
    "label_flip × 2.9": ft.Attack(kind="label_flip", share=SHARE, strength=2.9),
}


def rules(screened: bool) -> list[ft.Method]:
    """FedAvg with every rule and with the steps before a rule; those that are screened, or those that are not."""
    nnm, trimmed = NNM(SHARE), TrimmedMean(SHARE)
    if screened:
        return [
            ft.fedavg(name="screened"),
            ft.fedavg(name="screened, median", aggregator="median"),
            ft.fedavg(name="screened, nnm + trimmed_mean", before=[nnm], aggregator=trimmed),
        ]
    return [
        ft.fedavg(name="mean"),
        ft.fedavg(name="norm_clipped", aggregator="norm_clipped"),
        ft.fedavg(name="centered_clipping", aggregator="centered_clipping"),
        ft.fedavg(name="median", aggregator="median"),
        ft.fedavg(name="geometric_median", aggregator="geometric_median"),
        ft.fedavg(name="trimmed_mean", aggregator=TrimmedMean(SHARE)),
        ft.fedavg(name="krum", aggregator=Krum(SHARE)),
        ft.fedavg(name="multi_krum", aggregator=MultiKrum(SHARE)),
        ft.fedavg(name="bulyan", aggregator=Bulyan(SHARE)),
        ft.fedavg(name="fltrust", aggregator="fltrust"),
        ft.fedavg(name="nnm + trimmed_mean", before=[nnm], aggregator=trimmed),
        ft.fedavg(name="nnm + geometric_median", before=[nnm], aggregator="geometric_median"),
        ft.fedavg(name="clipping + nnm + trimmed_mean", before=["clipping", nnm], aggregator=trimmed),
        ft.fedavg(name="clipping + multi_krum", before=["clipping"], aggregator=MultiKrum(SHARE)),
        ft.fedavg(name="momentum, centered_clipping", client_momentum=0.9, aggregator="centered_clipping"),
        ft.fedavg(name="momentum, nnm + trimmed_mean", client_momentum=0.9, before=[nnm], aggregator=trimmed),
        ft.methods.foundationfl(name="foundation + median"),
        ft.methods.foundationfl(name="foundation + trimmed_mean", aggregator=trimmed),
        ft.fedavg(name="bucketing + geometric_median", before=["bucketing"], aggregator="geometric_median"),
    ]


def measure_case(data: str, train: Mapping[str, Any], case: Case) -> Case:
    """The case with what its rules reach."""
    federation = ft.Federation.build(ft.data.load(data), seed=case["seed"], **DIVISIONS[case["division"]])
    return case | {"rules": measure_rules(rules, federation, ATTACKS[case["attack"]], case["seed"], train)}


def bad_clients(federation: ft.Federation, seed: int) -> list[int]:
    """Who attacks, whatever the attack."""
    return ft.Attack(kind="alie", share=SHARE).attackers(federation.client_names, seed)


def measure_rules(
    rules: Callable[[bool], list[ft.Method]], federation: ft.Federation, attack: ft.Attack | None, seed: int,
    train: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """By rule, the accuracy over the clients that are honest under every attack, and the success of a backdoor.

    The accuracy of a rule that diverges is None.
    """
    model = partial(ft.models.mlp, hidden=HIDDEN)
    run = partial(ft.run, federation=federation, model=model, seed=seed, attack=attack, eval_every=train["rounds"])
    results: dict[str, Any] = {}
    diverged: list[str] = []
    for screened in (False, True):
        methods = rules(screened)
        while methods:
            try:
                results |= run(methods, workers=0, screen=SCREEN if screened else None, **train).items()
                break
            except Diverged as error:
                diverged += error.methods
                methods = [m for m in methods if m.name not in diverged]
    honest = [n for n in range(federation.clients) if n not in bad_clients(federation, seed)]
    return {name: {"accuracy": None} for name in diverged} | {
        name: {
            "accuracy": round(compute_metrics(r.sums[honest], r.total[honest]).accuracy, 2),
            **({} if r.attack_success is None else {"success": round(r.attack_success, 2)}),
        }
        for name, r in results.items()
    }


def losses(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Attack → rule → points lost, one per seed; infinite if it diverged. In the order of `ATTACKS`."""
    without = {case["seed"]: case["rules"] for case in cases if case["attack"] == NONE}
    lost: dict[str, dict[str, list[float]]] = {}
    for case in sorted(cases, key=lambda case: (list(ATTACKS).index(case["attack"]), case["seed"])):
        for rule, found in case["rules"].items() if case["attack"] != NONE else ():
            by_rule = lost.setdefault(case["attack"], {})
            accuracy = -math.inf if found["accuracy"] is None else found["accuracy"]
            by_rule.setdefault(rule, []).append(without[case["seed"]][rule]["accuracy"] - accuracy)
    return lost


def successes(cases: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Rule → success of the backdoor in %, mean over seeds."""
    found: dict[str, list[float]] = {}
    for case in cases:
        for rule, values in case["rules"].items():
            if "success" in values:
                found.setdefault(rule, []).append(values["success"])
    return {rule: fmean(values) for rule, values in found.items()}


def render(record: dict[str, Any] | None, screening: dict[str, Any] | None = None) -> str:
    """docs/attacks.md: the template with its tables and the sentences on them."""
    attacks = [["kind", "attackers"], *([f"`{kind}`", text] for kind, text in KINDS.items())]
    template = TEMPLATE.read_text().replace("{ATTACKS}", markdown_table(attacks, text_columns=2).strip())
    shown = "Not recorded yet."
    if screening:
        found = screening["cases"]
        tables = (false_positives(found), false_positives(found, HELD_OUT_SITES), poison(found))
        shown = "\n\n".join(table.strip() for table in tables)
    template = template.replace("{SCREENING}", shown)
    if record is None:
        return template.replace("{TABLES}", "Not recorded yet.")
    parts = []
    for division, settings in record["divisions"].items():
        cases = [case for case in record["cases"] if case["division"] == division]
        lost, success = losses(cases), successes(cases)
        rows = [["rule", "without", *lost, *(["backdoor, success"] if "backdoor" in lost else [])]]
        clean = [case["rules"] for case in cases if case["attack"] == NONE]
        for rule in clean[0]:
            without = fmean(found[rule]["accuracy"] for found in clean)
            of_backdoor = [_success_cell(success.get(rule))] if "backdoor" in lost else []
            rows.append([rule, f"{without:.1f}", *(_cell(by_rule[rule]) for by_rule in lost.values()), *of_backdoor])
        seeds = sorted({len(values) for by_rule in lost.values() for values in by_rule.values()})
        network = {"hidden units": ", ".join(map(str, record["hidden"]))}
        shown = {**settings, **record["train"], **network, "seeds": " or ".join(map(str, seeds))}
        setting = ", ".join(f"{key} {value}" for key, value in shown.items())
        parts += [
            f"### {division}",
            f"{record['data']}: {setting}.",
            markdown_table(rows).strip(),
            _summary(lost, success),
            "Measured with " + "; and with ".join(dict.fromkeys(case["measured"] for case in cases)) + ".",
        ]
    return template.replace("{TABLES}", "\n\n".join(parts))


def _cell(lost: list[float]) -> str:
    if math.inf in lost:
        return "**diverges**"
    text = f"{round(fmean(lost), 1) + 0.0:+.1f}" + (f" ± {pstdev(lost):.1f}" if len(lost) > 1 else "")
    text = text.replace("-", "−")
    return text if fmean(lost) <= LARGEST_LOSS else f"**{text}**"


def _success_cell(success: float | None) -> str:
    if success is None:
        return "—"
    return f"{success:.0f} %" if success <= LARGEST_SUCCESS else f"**{success:.0f} %**"


def _summary(lost: Mapping[str, Mapping[str, list[float]]], success: Mapping[str, float]) -> str:
    """How many rules withstand each attack, and which withstand all of them."""
    best, counts = list(next(iter(lost.values()), {})), []
    for attack, by_rule in lost.items():
        withstand = [rule for rule, values in by_rule.items() if fmean(values) <= LARGEST_LOSS]
        if attack == "backdoor":
            withstand = [rule for rule in withstand if success[rule] <= LARGEST_SUCCESS]
        best = [rule for rule in best if rule in withstand]
        counts.append(f"{attack} {len(withstand)}")
    missing = [attack for attack in ATTACKS if attack not in (NONE, *lost)]
    return (
        f"Of {len(next(iter(lost.values()), {}))} rules, these numbers withstand: {'; '.join(counts)}. "
        f"**All of these attacks: {', '.join(best) if best else 'no rule'}.**"
        + (f" Not measured yet: {'; '.join(missing)}." if missing else "")
    )


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attacks", nargs="+", choices=[name for name in ATTACKS if name != NONE])
    parser.add_argument("--divisions", nargs="+", choices=DIVISIONS)
    options = parser.parse_args()
    data, train, seeds = "mnist", TRAIN, options.seeds
    attacks, divisions = options.attacks or list(ATTACKS)[1:], options.divisions or list(DIVISIONS)
    if options.quick:
        data, train, seeds, attacks, divisions = "digits", TRAIN | {"rounds": 2}, 1, attacks[:1], divisions[:1]
    header = {"data": data, "divisions": DIVISIONS, "train": train, "hidden": list(HIDDEN), "share": SHARE}
    cases = [
        {"division": division, "seed": seed, "attack": attack}
        for seed, attack, division in product(range(seeds), [NONE, *attacks], divisions)
    ]
    of_case = partial(measure_case, data, train)
    with result_file(options, "attacks") as path:
        for case in run_cases("attacks", cases, of_case, header, 1 if options.quick else options.jobs, path):
            accuracies = ", ".join(f"{name} {found['accuracy']}" for name, found in case["rules"].items())
            print(f"{case['division']}, seed {case['seed']}, {case['attack']}: {accuracies}", flush=True)
        measured = json.loads(path.read_text())["cases"]
    for division in divisions:
        of_division = [case for case in measured if case["division"] == division]
        print(division, _summary(losses(of_division), successes(of_division)), sep="\n")


if __name__ == "__main__":
    main()
