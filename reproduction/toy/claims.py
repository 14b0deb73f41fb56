"""Checks of the paper's claims about its toy experiments."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedtilt.data.published.toy import SETUPS
from fedtilt.evaluation.statistics import paired_difference
from fedtilt.report.tables import format_interval
from reproduction.chapter import Holds, Verdict, verdict_on
from reproduction.experiment import Claim
from reproduction.toy.geometry import best_worst_class, client_accuracy, setting_name, worst_class

HIGH = 95.0  # percent: a high accuracy
CLOSE = 3.0  # points: a small difference

Measured = Mapping[str, Mapping[str, Sequence[Any]]]  # data set → method → one result per seed, both clients


def verdict(claim: Claim, settings: Mapping[str, Any], measured: Measured) -> Verdict:
    """The verdict on a claim, not measured if a data set it needs is missing."""
    names, check = CLAIM_CHECKS[claim.key]
    if any(name not in measured for name in names):
        return verdict_on(claim, "not measured")
    holds, numbers = check(settings, measured)
    one_seed = any(len(by_seed) == 1 for name in names for by_seed in measured[name].values())
    return verdict_on(claim, "one seed" if one_seed else holds, numbers)


def _accuracy_by_client(by_seed: Sequence[Any], name: str) -> list[float]:
    """Expected accuracy of each client, classes weighted as in the test data, mean over seeds."""
    return [fmean(client_accuracy(clients[c]["expected"], name) for clients in by_seed) for c in (0, 1)]


def _clients_are_close(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    fedtilt = setting_name(1, 1)
    accuracy = {m: _accuracy_by_client(measured["toy-1"][m], "toy-1") for m in ("fedavg", "ditto", fedtilt)}
    one, two = accuracy[fedtilt]
    limits = [100 * best_worst_class(groups) for groups in SETUPS["toy-1"].groups]
    holds: Holds = "holds" if min(one, two) >= HIGH and abs(one - two) <= CLOSE else "does not hold"
    return holds, (
        f"{one:.1f} % and {two:.1f} %, where a line can reach {limits[0]:.1f} % and {limits[1]:.1f} %: the data causes "
        f"the gap. This says little about FedTilt: FedAvg has {accuracy['fedavg'][0]:.1f} % and "
        f"{accuracy['fedavg'][1]:.1f} %, Ditto {accuracy['ditto'][0]:.1f} % and {accuracy['ditto'][1]:.1f} %."
    )


def _classes_are_close(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    by_seed = measured["toy-2"][setting_name(max(settings["toy-2"]["tau"]), settings["toy-2"]["lam"][0])]
    accuracy = [fmean(clients[c]["expected"][k] for clients in by_seed) for c in (0, 1) for k in (0, 1)]
    low, high = min(accuracy), max(accuracy)
    holds: Holds = "holds" if low >= HIGH and high - low <= CLOSE else "does not hold"
    return holds, f"The accuracy of the four classes is {low:.2f} % to {high:.2f} %."


def _tau_makes_classes_fair(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    methods, taus, lam = measured["toy-2"], settings["toy-2"]["tau"], settings["toy-2"]["lam"][0]
    worst = {tau: [worst_class(clients) for clients in methods[setting_name(tau, lam)]] for tau in taus}
    gain = paired_difference(worst[max(taus)], worst[0.0])
    holds: Holds = "holds partly" if gain.sign() > 0 else "does not hold"
    negative = f" tau = {min(taus):g} gives up a class: {fmean(worst[min(taus)]):.1f} %." if min(taus) < 0 else ""
    return holds, (
        f"From tau = 0 to {max(taus):g} the worst of the four classes gains {format_interval(gain)} points (95 % "
        f"interval). But at tau = 0 it already has {fmean(worst[0.0]):.2f} % "
        f"(FedAvg {fmean(worst_class(clients) for clients in methods['fedavg']):.2f} %): these classes are easy for "
        f"any method.{negative}"
    )


def _classes_are_separated(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    methods, tau = measured["toy-3"], settings["toy-3"]["tau"][0]
    name = setting_name(tau, min(settings["toy-3"]["lam"]))
    one, two = _accuracy_by_client(methods[name], "toy-3")
    worst = {m: fmean(worst_class(clients) for clients in methods[m]) for m in methods}
    limit = 100 * min(best_worst_class(groups) for groups in SETUPS["toy-3"].groups)
    best = max(worst, key=lambda m: worst[m])
    close, separated = abs(one - two) <= CLOSE, worst[name] >= limit - CLOSE
    holds: Holds = "holds" if close and separated else "holds partly" if close or separated else "does not hold"
    return holds, (
        f"Clients: {one:.1f} % and {two:.1f} %. Worst class: {worst[name]:.1f} %, where a line can reach "
        f"{limit:.1f} %; FedAvg, without any tilt, has {worst['fedavg']:.1f} %, and the best of all settings tried, "
        f"{best}, {worst[best]:.1f} %."
    )


def _outliers_do_not_move_it(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    near, far, tau = measured["toy-3"], measured["toy-3-far"], settings["toy-3"]["tau"][0]
    lams = settings["toy-3"]["lam"]

    def mean_change(method: str) -> float:
        """How far the outliers move the expected accuracy of a class, paired by seed."""
        return fmean(
            abs(a[c]["expected"][k] - b[c]["expected"][k])
            for a, b in zip(near[method], far[method], strict=True) for c in (0, 1) for k in (0, 1)
        )  # fmt: skip

    change = {lam: mean_change(setting_name(tau, lam)) for lam in lams}
    fedavg = mean_change("fedavg")
    robust = change[min(lams)] <= CLOSE and change[min(lams)] < fedavg
    magnified = min(change[lam] for lam in lams if lam > 0) > change[min(lams)]
    holds: Holds = "holds" if robust and magnified else "holds partly" if robust or magnified else "does not hold"
    listed = ", ".join(f"lam = {lam:g}: {change[lam]:.1f}" for lam in lams)
    return holds, f"Noise of deviation 3 changes the accuracy of a class by (points) {listed}; FedAvg: {fedavg:.1f}."


Check = Callable[[Mapping[str, Any], Measured], tuple[Holds, str]]

# key of a claim → the data sets it needs, and its check
CLAIM_CHECKS: dict[str, tuple[tuple[str, ...], Check]] = {
    "clients": (("toy-1",), _clients_are_close),
    "classes": (("toy-2",), _classes_are_close),
    "larger-tau": (("toy-2",), _tau_makes_classes_fair),
    "robust": (("toy-3",), _classes_are_separated),
    "unmoved": (("toy-3", "toy-3-far"), _outliers_do_not_move_it),
}
