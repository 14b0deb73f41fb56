"""How numbers decide on what the paper says of convergence."""

from collections.abc import Callable, Mapping
from typing import Any

from fedtilt.reproduction.chapter import Holds, Verdict, verdict_on
from fedtilt.reproduction.experiment import Claim

PLAIN = "tau 0, lam 0"

Cases = Mapping[str, Mapping[str, Any]]  # name → result


def verdict(claim: Claim, fixed: Cases, rounds: Cases, special: Cases) -> Verdict:
    """The rule of this claim, where descents with w fixed, rounds with tilts and both special cases are there."""
    tilted = {name: r for name, r in rounds.items() if name != PLAIN}
    if not fixed or not tilted or len(special) < 2:
        return verdict_on(claim, "not measured")
    return verdict_on(claim, *RULES[claim.key](fixed, rounds, special))


def _contracts(fixed: Cases, _: Cases, __: Cases) -> tuple[Holds, str]:
    clients = [c for r in fixed.values() for c in r["clients"]]
    tight = max((1 - c["allowed"]) / (1 - c["worst"]) for c in clients)
    holds: Holds = "holds" if all(c["worst"] <= c["allowed"] for c in clients) else "does not hold"
    return holds, (
        f"The slowest iteration of any client, for any pair of tilts, gained {1 / tight:.1f} times what the bound "
        "promises."
    )


def _follows_w(_: Cases, rounds: Cases, special: Cases) -> tuple[Holds, str]:
    factors = [r["shared_factor"] or 0.0 for name, r in rounds.items() if name != PLAIN]  # None: there at once
    holds: Holds = "holds partly" if all(factor < 1 for factor in factors) else "does not hold"
    return holds, (
        f"L_n(v_n, w) follows w, whose distance to its limit shrinks to {min(factors):.4f} to {max(factors):.4f} of it "
        f"a round with steps of constant size, and like round^{special['decaying']['shared_power']:.2f} with decaying "
        "ones, not linearly. As a statement on gradient descent over w it is true and empty: L_n(v_n, ·) is the "
        "parabola mu/2 · ‖v_n − w‖², whose minimiser is w = v_n. The shared model descends on nothing of the kind, and "
        "its limit w* is another point."
    )


def _at_the_rate_of_w(_: Cases, rounds: Cases, special: Cases) -> tuple[Holds, str]:
    held = all(r["tightest"] <= 1 + 1e-9 for r in [*rounds.values(), *special.values()])
    start, slow = special["from-the-limit"], special["decaying"]
    return "holds partly" if held else "does not hold", (
        f"Where w is the slower one, v follows it: with a decaying step w falls like round^{slow['shared_power']:.2f} "
        f"and v like round^{slow['personal_power']:.2f}. Where w is the faster one v has its own rate: with w at its "
        f"limit from the beginning, g(t) = 0, v shrinks by {start['personal_factor']:.4f} a round (a = "
        f"{start['forget']:.4f}). Our recursion above was {'never' if held else 'once'} broken."
    )


def _bounded(_: Cases, rounds: Cases, special: Cases) -> tuple[Holds, str]:
    """A bound that no constants mend does not hold; one that larger constants would mend holds partly."""
    cases = {name: r for name, r in {**rounds, **special}.items() if name != PLAIN}
    broken = {name: r for name, r in cases.items() if broken_in(r)}
    growing = [name for name, r in broken.items() if _grows(r)]
    mended = [name for name in broken if name not in growing]
    told = [f"Broken in {len(broken)} of {len(cases)} cases with tilts." if broken else "Never broken in what was run."]
    if growing:
        told.append(
            f"{_listed(growing, cases)}, and in the last round the gap still grows against the bound, so no constants "
            "D and E help. So it must be: an exponential bound cannot hold where w converges like 1/t and a client's "
            "term of first order is positive, which the paper's own Assumption 2 allows."
        )
    if mended:
        told.append(
            f"{_listed(mended, cases)}: there the proof's expression for D is too small, which the paper bounds from "
            "above and we take with equality, and larger constants would do."
        )
    if broken:
        told.append("Gamma is from the smoothness of v's objective, which is more than L_n(v, ·) has.")
    return "does not hold" if growing else "holds partly" if broken else "holds", " ".join(told)


def broken_in(result: Mapping[str, Any]) -> str:
    """For how many clients, when and how far the paper's bound is broken; empty where it holds."""
    found = [b for b in result["crossed"] if b is not None]
    if not found:
        return ""
    first, last = min(b["first"] for b in found), max(b["last"] for b in found)
    when = f"in round {first} alone" if first == last else f"in rounds {first} to {last}"
    far = [b["times"] for b in found]
    times = "not even positive" if None in far else f"{max(far):.3g} times"
    return f"broken for {len(found)} of {len(result['crossed'])} clients, {when} ({times})"


def _grows(result: Mapping[str, Any]) -> bool:
    """Whether a gap is farther above the bound in the last round than ever before."""
    return any(b is not None and b["at"] == result["gap"][-1][0] for b in result["crossed"])


def _listed(names: list[str], cases: Cases) -> str:
    told = "; ".join(f"{name}: {broken_in(cases[name])}" for name in names)
    return told[0].upper() + told[1:]


def _efficient(fixed: Cases, _: Cases, __: Cases) -> tuple[Holds, str]:
    """As efficient: linear too, in no more iterations. Linear in more iterations is half of it."""
    linear = all(c["worst"] < 1 for r in fixed.values() for c in r["clients"])
    solved = {name: [c["solved"] for c in r["clients"]] for name, r in fixed.items()}
    most = {name: None if None in counts else max(counts) for name, counts in solved.items()}
    plain = most.get(PLAIN)
    if not linear or plain is None:
        return "does not hold" if not linear else "not measured", ""
    more = [name for name, count in most.items() if count is None or count > plain]
    listed = ", ".join(f"{name}: {'not reached' if count is None else count}" for name, count in most.items())
    return "holds partly" if more else "holds", (
        f"The rate is linear for all tilts{', in more iterations with them' if more else ''}. Iterations to a "
        f"millionth: {listed}. The step is that of Lemma 6, 1 / (B_1 + tau B_2 + lam B_3), safe wherever v is and "
        "small for large tilts; we tried no other."
    )


RULES: dict[str, Callable[[Cases, Cases, Cases], tuple[Holds, str]]] = {
    "fixed-w": _contracts,
    "fixed-v": _follows_w,
    "follows": _at_the_rate_of_w,
    "bound": _bounded,
    "efficient": _efficient,
}
