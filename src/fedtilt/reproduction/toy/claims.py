"""How numbers decide on what the paper says of its toy experiments."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedtilt.data.toy import SETUPS
from fedtilt.report.compare import SeedValues, sign_beyond_error
from fedtilt.reproduction.chapter import Holds, Verdict, verdict_on
from fedtilt.reproduction.experiment import Claim
from fedtilt.reproduction.toy.geometry import best_worst, named, sampled, worst_class

HIGH = 95.0  # percent: what we call a high accuracy
CLOSE = 3.0  # points: what we call close


def verdict(claim: Claim, settings: Mapping[str, Any], measured: Mapping[str, dict[str, Any]]) -> Verdict:
    """The rule of this claim, on the data sets that it needs."""
    needs = {"clients": ("toy-1",), "classes": ("toy-2",), "larger-tau": ("toy-2",), "robust": ("toy-3",)}
    names = needs.get(claim.key, ("toy-3", "toy-3-far"))
    if any(name not in measured for name in names):
        return verdict_on(claim, "not measured")
    rules = {
        "clients": _clients_are_close, "classes": _classes_are_close, "larger-tau": _tau_is_the_reason,
        "robust": _separated, "unmoved": _unmoved,
    }  # fmt: skip
    holds, found = rules[claim.key](settings, measured)
    alone = any(len(of) == 1 for name in names for of in measured[name].values())
    return verdict_on(claim, "one seed" if alone else holds, found)


def _per_client(seeds_of: Sequence[Any], name: str) -> list[float]:
    """Expected accuracy of each client, its classes weighing what they weigh in the test data."""
    return [fmean(sampled(s[c]["expected"], name) for s in seeds_of) for c in (0, 1)]


def _clients_are_close(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Holds, str]:
    own = measured["toy-1"]
    told = {m: _per_client(own[m], "toy-1") for m in ("fedavg", "ditto", named(1, 1))}
    one, two = told[named(1, 1)]
    limits = [100 * best_worst(groups) for groups in SETUPS["toy-1"].groups]
    holds: Holds = "holds" if min(one, two) >= HIGH and abs(one - two) <= CLOSE else "does not hold"
    return holds, (
        f"{one:.1f} % and {two:.1f} %, where a line can reach {limits[0]:.1f} % and {limits[1]:.1f} %: the gap is the "
        f"data's. It says little of FedTilt: FedAvg has {told['fedavg'][0]:.1f} % and {told['fedavg'][1]:.1f} %, Ditto "
        f"{told['ditto'][0]:.1f} % and {told['ditto'][1]:.1f} %."
    )


def _classes_are_close(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Holds, str]:
    own = measured["toy-2"]
    name = named(max(settings["toy-2"]["tau"]), settings["toy-2"]["lam"][0])
    shares = [fmean(s[c]["expected"][k] for s in own[name]) for c in (0, 1) for k in (0, 1)]
    holds: Holds = "holds" if min(shares) >= HIGH and max(shares) - min(shares) <= CLOSE else "does not hold"
    return holds, f"The four classes are right in {min(shares):.2f} % to {max(shares):.2f} % of the cases."


def _tau_is_the_reason(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Holds, str]:
    own, taus, lam = measured["toy-2"], settings["toy-2"]["tau"], settings["toy-2"]["lam"][0]
    worst = {tau: [worst_class(s) for s in own[named(tau, lam)]] for tau in taus}
    gain = SeedValues(tuple(a - b for a, b in zip(worst[max(taus)], worst[0.0], strict=True)))
    holds: Holds = "holds partly" if sign_beyond_error(gain) > 0 else "does not hold"
    below = f" tau = {min(taus):g} gives up a class: {fmean(worst[min(taus)]):.1f} %." if min(taus) < 0 else ""
    return holds, (
        f"The worst of the four classes gains {gain.mean:.2f} points (standard error {gain.error:.2f}) from tau = 0 to "
        f"{max(taus):g}; but at tau = 0 it stands at {fmean(worst[0.0]):.2f} % already "
        f"(FedAvg {fmean(worst_class(s) for s in own['fedavg']):.2f} %): these classes are easy for any method.{below}"
    )


def _separated(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Holds, str]:
    own, tau = measured["toy-3"], settings["toy-3"]["tau"][0]
    name = named(tau, min(settings["toy-3"]["lam"]))
    one, two = _per_client(own[name], "toy-3")
    worst = {m: fmean(worst_class(s) for s in own[m]) for m in own}
    limit = 100 * min(best_worst(groups) for groups in SETUPS["toy-3"].groups)
    leader = max(worst, key=lambda m: worst[m])
    close, separated = abs(one - two) <= CLOSE, worst[name] >= limit - CLOSE
    holds: Holds = "holds" if close and separated else "holds partly" if close or separated else "does not hold"
    return holds, (
        f"Clients: {one:.1f} % and {two:.1f} %. Worst class: {worst[name]:.1f} %, where a line can reach "
        f"{limit:.1f} %; FedAvg, without any tilt, has {worst['fedavg']:.1f} %, and the best of all settings tried, "
        f"{leader}, {worst[leader]:.1f} %."
    )


def _unmoved(settings: Mapping[str, Any], measured: Mapping[str, Any]) -> tuple[Holds, str]:
    near, far, tau = measured["toy-3"], measured["toy-3-far"], settings["toy-3"]["tau"][0]
    lams = settings["toy-3"]["lam"]

    def moved(method: str) -> float:
        """The mean change of a class's expected accuracy by the far outliers, seed by seed."""
        return fmean(
            abs(a[c]["expected"][k] - b[c]["expected"][k])
            for a, b in zip(near[method], far[method], strict=True) for c in (0, 1) for k in (0, 1)
        )  # fmt: skip

    change = {lam: moved(named(tau, lam)) for lam in lams}
    plain = moved("fedavg")
    robust = change[min(lams)] <= CLOSE and change[min(lams)] < plain
    magnified = min(change[lam] for lam in lams if lam > 0) > change[min(lams)]
    holds: Holds = "holds" if robust and magnified else "holds partly" if robust or magnified else "does not hold"
    listed = ", ".join(f"lam = {lam:g}: {change[lam]:.1f}" for lam in lams)
    return holds, f"Noise of deviation 3 moves a class's accuracy by (points) {listed}; FedAvg: {plain:.1f}."
