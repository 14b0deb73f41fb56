"""Checks of the paper's claims about convergence."""

from collections.abc import Callable, Mapping
from typing import Any

from reproduction.chapter import Holds, Verdict, verdict_on
from reproduction.experiment import Claim

UNTILTED = "tau 0, lam 0"

CaseResults = Mapping[str, Mapping[str, Any]]  # name of a case → its result


def verdict(claim: Claim, fixed: CaseResults, rounds: CaseResults, special: CaseResults) -> Verdict:
    """The verdict on a claim, not measured if there are no results with w fixed, with tilts or of a special case."""
    tilted = {name: r for name, r in rounds.items() if name != UNTILTED}
    if not claim.key or not fixed or not tilted or len(special) < 2:
        return verdict_on(claim, "not measured")
    return verdict_on(claim, *CLAIM_CHECKS[claim.key](fixed, rounds, special))


def _is_smooth(fixed: CaseResults, _: CaseResults, __: CaseResults) -> tuple[Holds, str]:
    share = max(c["steepest"] / c["smoothness"] for r in fixed.values() for c in r["clients"])
    return "holds" if share <= 1 else "does not hold", (
        "At the optimum of any client, for any pair of tilts, the largest curvature of L_n(·, w) is at most "
        f"{share:.0%} of B_1 + tau B_2 + lam B_3, which bounds it for every v. That bound rests on bounded "
        "gradients of the loss (cross-entropy); without them L_n is smooth near an optimum, but not "
        "everywhere."
    ).replace("%", " %")


def _contracts(fixed: CaseResults, _: CaseResults, __: CaseResults) -> tuple[Holds, str]:
    clients = [c for r in fixed.values() for c in r["clients"]]
    tightest = max((1 - c["allowed"]) / (1 - c["worst"]) for c in clients)
    holds: Holds = "holds" if all(c["worst"] <= c["allowed"] for c in clients) else "does not hold"
    return holds, (
        "The slowest iteration of any client, for any pair of tilts, reduces the gap by "
        f"{1 / tightest:.1f} times what the bound guarantees."
    )


def _follows_w(_: CaseResults, rounds: CaseResults, special: CaseResults) -> tuple[Holds, str]:
    factors = [r["shared_factor"] or 0.0 for name, r in rounds.items() if name != UNTILTED]  # None: w is at its limit
    holds: Holds = "holds partly" if all(factor < 1 for factor in factors) else "does not hold"
    return holds, (
        "L_n(v_n, w) follows w. With a constant step, the distance of w to its limit shrinks by a factor of "
        f"{min(factors):.4f} to {max(factors):.4f} per round; with a decaying step it falls like "
        f"round^{special['decaying']['shared_power']:.2f}, which is not linear. As a statement about gradient descent "
        "over w the lemma is true but empty: L_n(v_n, ·) is the parabola mu/2 · ‖v_n − w‖², with minimiser w = v_n. "
        "The shared model does not minimise it, and its limit w* is another point."
    )


def _at_the_rate_of_w(_: CaseResults, rounds: CaseResults, special: CaseResults) -> tuple[Holds, str]:
    bound_holds = all(r["tightest"] <= 1 + 1e-9 for r in [*rounds.values(), *special.values()])
    start, slow = special["from-the-limit"], special["decaying"]
    return "holds partly" if bound_holds else "does not hold", (
        "If w converges more slowly, v follows it: with a decaying step the error of w falls like "
        f"round^{slow['shared_power']:.2f} and that of v like round^{slow['personal_power']:.2f}. If w converges "
        "faster, v has its own rate: with w at its limit from the start, g(t) = 0, the error of v shrinks by a factor "
        f"of {start['personal_factor']:.4f} per round (a = {start['forget']:.4f}). Our recursion above is "
        f"{'never' if bound_holds else 'sometimes'} violated."
    )


def _bounded(_: CaseResults, rounds: CaseResults, special: CaseResults) -> tuple[Holds, str]:
    """Holds partly if larger constants would repair the bound, does not hold if no constants do."""
    tilted = {name: r for name, r in {**rounds, **special}.items() if name != UNTILTED}
    violated = {name: r for name, r in tilted.items() if violation_text(r)}
    growing = [name for name, r in violated.items() if _grows(r)]
    repairable = [name for name in violated if name not in growing]
    sentences = [f"Violated in {len(violated)} of {len(tilted)} cases with tilts." if violated else "Never violated."]
    if growing:
        sentences.append(
            f"{_list_violations(growing, tilted)}, and in the last round the gap still grows relative to the bound, so "
            "no constants D and E help. This is to be expected: an exponential bound cannot hold where w converges "
            "like 1/t and a client's first-order term is positive, which the paper's own Assumption 2 allows."
        )
    if repairable:
        sentences.append(
            f"{_list_violations(repairable, tilted)}: there the proof's expression for D is too small (the paper "
            "bounds it from above, and we take it with equality), and larger constants would do."
        )
    if violated:
        sentences.append("Gamma uses the smoothness of v's objective, which is more than that of L_n(v, ·).")
    return "does not hold" if growing else "holds partly" if violated else "holds", " ".join(sentences)


def violation_text(result: Mapping[str, Any]) -> str:
    """For how many clients, when and by how much the paper's bound is violated; empty where it holds."""
    violations = [v for v in result["crossed"] if v is not None]
    if not violations:
        return ""
    first, last = min(v["first"] for v in violations), max(v["last"] for v in violations)
    when = f"only in round {first}" if first == last else f"in rounds {first} to {last}"
    ratios = [v["times"] for v in violations]
    times = "the bound is not positive" if None in ratios else f"{max(ratios):.3g} times"
    return f"violated for {len(violations)} of {len(result['crossed'])} clients, {when} ({times})"


def _grows(result: Mapping[str, Any]) -> bool:
    """Whether a gap exceeds the bound most in the last round."""
    return any(v is not None and v["at"] == result["gap"][-1][0] for v in result["crossed"])


def _list_violations(names: list[str], results: CaseResults) -> str:
    text = "; ".join(f"{name}: {violation_text(results[name])}" for name in names)
    return text[0].upper() + text[1:]


def _efficient(fixed: CaseResults, _: CaseResults, __: CaseResults) -> tuple[Holds, str]:
    """Holds if the rate is linear and needs no more iterations than without tilts, partly if it needs more."""
    linear = all(c["worst"] < 1 for r in fixed.values() for c in r["clients"])
    solved = {name: [c["solved"] for c in r["clients"]] for name, r in fixed.items()}
    iterations = {name: None if None in counts else max(counts) for name, counts in solved.items()}
    untilted = iterations.get(UNTILTED)
    if not linear or untilted is None:
        return "does not hold" if not linear else "not measured", ""
    more = [name for name, count in iterations.items() if count is None or count > untilted]
    listed = ", ".join(f"{name}: {'not reached' if count is None else count}" for name, count in iterations.items())
    return "holds partly" if more else "holds", (
        f"The rate is linear for all tilts{', but tilts need more iterations' if more else ''}. Iterations until the "
        f"gap is a millionth of the first: {listed}. The step is that of Lemma 6, 1 / (B_1 + tau B_2 + lam B_3): safe "
        "for every v, and small for large tilts. We tried no other."
    )


CLAIM_CHECKS: dict[str, Callable[[CaseResults, CaseResults, CaseResults], tuple[Holds, str]]] = {
    "smooth": _is_smooth,
    "fixed-w": _contracts,
    "fixed-v": _follows_w,
    "follows": _at_the_rate_of_w,
    "bound": _bounded,
    "efficient": _efficient,
}
