"""How numbers decide on the paper's words about the signs of the tilts."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch

from fedtilt.report.compare import SeedValues, sign_beyond_error
from fedtilt.reproduction.chapter import Holds, Verdict, verdict_on
from fedtilt.reproduction.experiment import Claim, Experiment
from fedtilt.reproduction.signs.settings import PLAIN, Measured, Tilts, Values, grid, sign, words


def compare(values: Sequence[float], plain: Sequence[float]) -> int:
    """1 where values are larger than the plain ones beyond one standard error of the paired difference, −1 smaller.

    >>> compare([3.0, 5.0], [1.0, 2.0]), compare([3.0, 1.0], [1.0, 3.1])
    (1, 0)
    """
    return sign_beyond_error(SeedValues(tuple(a - b for a, b in zip(values, plain, strict=True))))


def verdict(claim: Claim, experiment: Experiment, found: Mapping[str, Measured]) -> Verdict:
    """How many of the comparisons that a claim speaks of agree with its word."""
    if not claim.check:
        return verdict_on(claim, "not measured")
    if claim.check.get("apart"):
        return _apart(claim, experiment, found)
    checks = [check for name, m in found.items() for check in _checks(claim, experiment, name, m)]
    if not checks:
        return verdict_on(claim, "not measured", "One seed has no error bar." if found else "")
    agreed = [check for check in checks if check[1]]
    seeds = min(len(of) for m in found.values() for of in next(iter(m.personal["accuracy"].values())).values())
    by_chance = len(checks) * passing(seeds)
    partly: Holds = "holds partly" if len(agreed) > by_chance else "does not hold"
    holds: Holds = "holds" if len(agreed) == len(checks) else partly
    against = [told for told, agrees in checks if not agrees]
    rival = "no tilt or a smaller one" if "more" in claim.check else "no tilt"
    counted = (
        f"{len(agreed)} of {len(checks)} comparisons with {rival} agree beyond one standard error; by chance, "
        f"{by_chance:.1f} would."
    )
    listed = f" Against: {'; '.join(against)}." if against else ""
    return verdict_on(claim, holds, f"{counted}{listed}")


def passing(seeds: int) -> float:
    """How often a mean of nothing but chance is more than one standard error above 0: Student's t.

    >>> [round(passing(seeds), 3) for seeds in (2, 3, 5)]
    [0.25, 0.211, 0.187]
    """
    freedom = seeds - 1
    t = torch.distributions.StudentT(freedom)
    ends = torch.linspace(0, 1, 2001, dtype=torch.float64)
    return 0.5 - float(torch.trapezoid(t.log_prob(ends).exp(), ends))


def _checks(claim: Claim, experiment: Experiment, name: str, m: Measured) -> list[tuple[str, bool]]:
    """(what was compared, whether the paper's word fits) for every setting of these signs and every condition."""
    check, found = claim.check, []
    if "more" in check:
        return _stronger(check, experiment, name, m)
    for t in grid(experiment.settings):
        if "q" in check and sign(t.q) == check["q"]:
            spread = m.shared["client_fairness"]
            found += [
                _checked(name, c, t, "client spread of w", spread, check["fairness"], -1, m, []) for c in m.compared
            ]
        elif "tau" in check and not t.q and t.signs == (check["tau"], check["lam"]):
            size = max(abs(t.tau), abs(t.lam))
            rivals = [r for r in grid(experiment.settings) if not r.q and size in (abs(r.tau), abs(r.lam))]
            fair = [r.name for r in rivals if words(experiment, r)[0] == "high"]
            robust = [r.name for r in rivals if words(experiment, r)[1] == "high"]
            spread, accuracy = m.personal["client_data_fairness_mean"], m.personal["accuracy"]
            for c in m.compared:
                if c == "clean":
                    found.append(_checked(name, c, t, "class spread", spread, check["fairness"], -1, m, fair))
                else:
                    found.append(_checked(name, c, t, "accuracy", accuracy, check["robustness"], 1, m, robust))
    return found


def _stronger(check: Mapping[str, Any], experiment: Experiment, name: str, m: Measured) -> list[tuple[str, bool]]:
    """From no tilt to small ones of these signs to large ones: fairer to classes on clean data, or less robust."""
    tau, lam = check["more"]
    sizes = (experiment.settings["small"], experiment.settings["large"])
    steps = [PLAIN.name, *(Tilts(tau * size, lam * size, 0.0).name for size in sizes)]
    fairer = check["of"] == "fairness"
    values, what = (
        m.personal["client_data_fairness_mean" if fairer else "accuracy"],
        ("accuracy", "class spread")[fairer],
    )
    found = []
    for condition in [c for c in m.compared if (c == "clean") == fairer]:
        here = values[condition]
        for less, more in pairwise(steps):
            if m.diverged(less, condition) or m.diverged(more, condition):
                found.append((f"{name}, {condition}, {more}: diverged", not fairer))
                continue
            fits = compare(here[more], here[less]) == -1 and not (fairer and m.collapsed(more, condition))
            numbers = f"{fmean(here[more]):.1f} against {fmean(here[less]):.1f} with {less}"
            found.append((f"{name}, {condition}, {more}: {what} {numbers}", fits))
    return found


def _apart(claim: Claim, experiment: Experiment, found: Mapping[str, Measured]) -> Verdict:
    """Under no kind of outliers is one of the fairest settings (to classes, on clean data) one of the most robust."""
    told, apart = [], []
    for name, m in found.items():
        settings = [t.name for t in grid(experiment.settings) if not t.q]
        for condition in [c for c in m.compared if c != "clean" and "clean" in m.compared]:
            usable = [s for s in settings if not m.collapsed(s, "clean") and not m.collapsed(s, condition)]
            fair = _leaders(m.personal["client_data_fairness_mean"]["clean"], usable, -1)
            robust = _leaders(m.personal["accuracy"][condition], usable, 1)
            both = [setting for setting in fair if setting in robust]
            apart.append(not both)
            told.append(f"{name}, {condition}: {f'{both[0]} is both' if both else f'{fair[0]} and {robust[0]}'}")
    if not apart:
        return verdict_on(claim, "not measured", "One seed has no error bar." if found else "")
    holds: Holds = "holds" if all(apart) else "holds partly" if any(apart) else "does not hold"
    return verdict_on(
        claim,
        holds,
        f"In {sum(apart)} of {len(apart)} cases no setting is best, or within one standard error of it, on both; the "
        f"fairest and the most robust: {'; '.join(told)}.",
    )


def _leaders(values: Mapping[str, Sequence[float]], usable: Sequence[str], good: int) -> list[str]:
    """The best setting, then those that tie with it."""
    first = max(usable, key=lambda setting: good * fmean(values[setting]))
    return [first] + [s for s in usable if s != first and compare(values[s], values[first]) == 0]


def _checked(
    name: str, condition: str, t: Tilts, what: str, values: Values, word: str, good: int, m: Measured,
    rivals: Sequence[str],
) -> tuple[str, bool]:  # fmt: skip
    """High: better than no tilt. Low: worse. Very high: also not worse than what is called high."""
    here = values[condition]
    wanted = good if "high" in word else -good
    if m.diverged(t.name, condition):
        return f"{name}, {condition}, {t.name}: diverged", wanted != good
    collapsed = m.collapsed(t.name, condition)
    fits = compare(here[t.name], here[PLAIN.name]) == wanted and not (collapsed and wanted == good)
    numbers = f"{fmean(here[t.name]):.1f} against {fmean(here[PLAIN.name]):.1f}"
    if word.startswith("very"):
        ahead = [r for r in rivals if not m.collapsed(r, condition) and compare(here[t.name], here[r]) == -good]
        fits = fits and not ahead
        numbers += "".join(f", {fmean(here[r]):.1f} with {r}" for r in ahead)
    return f"{name}, {condition}, {t.name}: {what} {numbers}{' (collapsed)' if collapsed else ''}", fits
