"""What to know before trusting the numbers of a run: one function per note, shown on the terminal and in reports."""

import shlex
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.evaluation.client_differences import Draw
from fedtilt.evaluation.scores import ACCURACY, client_scores
from fedtilt.evaluation.verdicts import LEVEL, Verdict, compare, holm
from fedtilt.report.compare import VIEWS, rare_class
from fedtilt.report.run_reader import Run
from fedtilt.text_tables import first_names, join_words

FEW_SAMPLES = 25  # of a client: with fewer, its accuracy is uncertain by 20 points or more
_OTHER_SAMPLES = 5  # of other classes, all predicted wrongly, before a client's model counts as collapsed
_NOTICED = 0.5  # points by which personal models are worse than the shared one
_NAMED = 5  # clients


class Note(NamedTuple):
    """One fact about a run."""

    title: str  # on a terminal, in front of the sentence
    text: str  # a sentence


def notes(run: Run) -> list[Note]:
    """The notes that apply to a run, the most important ones first."""
    about_run = (_unfinished, _seeds, _never_selected, _without_test_data, _privacy, _attack, _outliers)
    return [*(note for about in about_run for note in about(run)), *model_notes(run)]


def model_notes(run: Run) -> list[Note]:
    """The notes about models that are not what one expects: worse than the shared one, or of one class."""
    return [note for about in (_personal_models, _one_class, _collapse, _few_samples) for note in about(run)]


def _unfinished(run: Run) -> Iterator[Note]:
    if run.finished:
        return
    text = f"Unfinished: compared after round {run.round} of {run.rounds}"
    behind = [str(seed) for seed in run.seeds if seed not in [seed_run.seed for seed_run in run.compared]]
    if behind:
        text += f", without seed{'s' if len(behind) > 1 else ''} {join_words(behind)}, not yet at this round"
    remedy = f"; continue with: fedtilt resume {shlex.quote(str(run.folder))}" if run.spec else ""
    yield Note("unfinished", f"{text}{remedy}.")


def _seeds(run: Run) -> Iterator[Note]:
    """What the marks of the best methods mean."""
    count = len(run.compared)
    beyond = "beyond the chance of clients and of their rows, at 5 % for all methods together"
    told_apart = f"Methods are told apart {beyond}"
    if count == 1:
        yield Note("seeds", f"{told_apart}. One seed: others may train other models.")
        return
    how = "the seeds share test rows, so that p is twice the median of theirs"
    if all(seed_run.drawn.generated for seed_run in run.compared):
        how = "the seeds draw new data" + (" and are a sample" if count > 2 else "; p is twice their median")
    yield Note("seeds", f"{told_apart}; {how}. ±: standard deviation over {count} seeds, which is no test.")


def _never_selected(run: Run) -> Iterator[Note]:
    summaries = [seed_run.last(method) for seed_run in run.compared for method in run.methods]
    counts = [summary.never_selected for summary in summaries if summary.personal is not None]
    if most := max(counts, default=0):
        count = most if most == min(counts) else f"Up to {most}"
        who = f"{count} of {run.compared[0].clients:,} clients"
        what = "were never selected and are evaluated on the shared model"
        remedy = f"the table “{VIEWS['ever_selected'].title}” of the report leaves them out"
        yield Note("never selected", f"{who} {what}; {remedy}.")


def _without_test_data(run: Run) -> Iterator[Note]:
    names = [
        f"{name}, seed {seed_run.seed}" if len(run.compared) > 1 else name
        for seed_run in run.compared
        for client, name in enumerate(seed_run.client_names)
        if not seed_run.total[client].any() and client not in (*seed_run.attackers, *seed_run.left_out)
    ]
    if names:
        sites = run.fingerprint.get("runner") == "flower"  # which may have failed, or not have replied
        who = "Sites that have no test data, or did not evaluate" if sites else "Clients without test data"
        yield Note("not evaluated", f"{who}: {first_names(names, _NAMED, '; ')}.")


def _privacy(run: Run) -> Iterator[Note]:
    privacy = run.compared[0].last(run.methods[0]).privacy
    if privacy is not None:
        spent = f"epsilon {privacy.epsilon:.3g} at delta {privacy.delta:g} after round {run.round}"
        covers = "the shared model of one method, but neither personal models nor the counts of predictions"
        noise = f"with noise multiplier {privacy.noise:g}. It covers {covers}."
        yield Note("privacy", f"Client-level differential privacy: {spent}, {noise}")


def _attack(run: Run) -> Iterator[Note]:
    """Who attacks, and how well a backdoor works."""
    attack = run.fingerprint["train"].get("attack")
    if not attack:
        return
    seed_run = run.compared[0]
    names, clients = [seed_run.client_names[client] for client in seed_run.attackers], seed_run.clients
    seed = f"in seed {seed_run.seed}: " if len(run.compared) > 1 else ""
    who = f"by {len(names)} of {clients:,} clients ({seed}{first_names(names, _NAMED)})"
    text = f"Attack {attack['kind']} from round {attack['from_round']} on, {who}; all metrics are over the other "
    text += f"{clients - len(names):,}"
    success = {m: [s.last(m).attack_success for s in run.compared] for m in run.methods}
    means = {m: fmean(v for v in values if v is not None) for m, values in success.items() if None not in values}
    shown = join_words([f"{method} {value:.1f} %" for method, value in means.items()]) if means else ""
    yield Note("attack", text + (f"; success of the backdoor: {shown}" if shown else "") + ".")


def _outliers(run: Run) -> Iterator[Note]:
    if any(seed_run.last(method).clean for seed_run in run.compared for method in run.methods):
        remedy = f"the table “{VIEWS['clean'].title}” of the report leaves them out"
        yield Note("outliers", f"Only some clients have outliers; {remedy}.")


def _personal_models(run: Run) -> Iterator[Note]:
    """Personal models that are worse than the shared one beyond chance, and noticeably."""
    methods = [m for m in run.methods if all(s.counts[m].personal is not None for s in run.compared)]
    noticed = {method: means for method in methods if (means := _personal_and_shared(run, method)) is not None}
    found = {method: _personal_against_shared(run, method).p_value for method in methods} if noticed else {}
    adjusted = dict(zip(found, holm(list(found.values())), strict=True))
    for method, means in noticed.items():
        if adjusted[method] > LEVEL:
            continue
        values = [run.score.text(v, 1) if run.score.unit else f"{v:.4g}" for v in means]
        scores = f"{run.score.title} {values[0]} against {values[1]}, mean over clients"
        worse = f"The personal models of {method} are worse than its shared model"
        yield Note("personal models", f"{worse}: {scores}. Raise mu, or use the shared model.")


def _personal_and_shared(run: Run, method: str) -> tuple[float, float] | None:
    """The mean scores of the personal models and of the shared one, if the former are noticeably worse."""
    personal, shared = (
        fmean(float(client_scores(getattr(s.counts[method], kind), s.total).mean()) for s in run.compared)
        for kind in ("personal", "shared")
    )
    worse = shared - personal if run.score.higher_is_better else personal - shared
    return (personal, shared) if worse >= (_NOTICED if run.score.unit else 0.01 * shared) else None


def _personal_against_shared(run: Run, method: str) -> Verdict:
    draws, higher = [], run.score.higher_is_better
    for seed_run in run.compared:
        counts = seed_run.counts[method]
        sums = {"personal": counts.evaluated, "shared": counts.shared}
        draws.append(Draw(sums=sums, total=seed_run.total, new_data=seed_run.drawn.generated))
    return compare(draws, run.score.name, [("personal", "shared")], higher_is_better=higher)[0]


def _one_class(run: Run) -> Iterator[Note]:
    """Methods that predict the same class for every test sample."""
    if constant := [method for method in run.methods if _predicts_one_class(run, method)]:
        verb = "predicts" if len(constant) == 1 else "predict"
        rare = "as models of a rare class do; use a threshold, or class_weights = 'balanced'"
        remedy = "train longer, or with a higher learning rate" if rare_class(run) is None else rare
        yield Note("one class", f"{join_words(constant)} {verb} the same class for every test sample: {remedy}.")


def _collapse(run: Run) -> Iterator[Note]:
    """Methods that predict one class alone within most clients, though not the same for all."""
    for method in run.methods:
        tables = [] if _predicts_one_class(run, method) else _class_tables(run, method)
        judged = sum(int((total.sum(1) - total.amax(1) >= _OTHER_SAMPLES).sum()) for _, total in tables)
        found = sum(int(_has_one_class(sums, total, _OTHER_SAMPLES).sum()) for sums, total in tables)
        if 2 * found > judged:
            text = f"{method} predicts one class only for {found} of {judged} clients with several classes"
            yield Note("collapse", f"{text}: it has collapsed.")


def _class_tables(run: Run, method: str) -> list[tuple[Tensor, Tensor]]:
    """Correct predictions and samples by client and class, for every seed; empty: they are not by class."""
    if run.score is not ACCURACY or run.group != CLASS:
        return []
    return [(seed_run.counts[method].evaluated, seed_run.total) for seed_run in run.compared]


def _predicts_one_class(run: Run, method: str) -> bool:
    """Whether a method predicts the same class for every test sample."""
    tables = [(sums.sum(0, keepdim=True), total.sum(0, keepdim=True)) for sums, total in _class_tables(run, method)]
    return bool(tables) and all(bool(_has_one_class(sums, total, 1)) for sums, total in tables)


def _has_one_class(correct: Tensor, total: Tensor, others: int) -> Tensor:
    """Clients with one class always right and the others, of at least this many samples, never: (clients,) bool."""
    present = total > 0
    always, never = (correct == total) & present, (correct == 0) & present
    wrong = (total * never).sum(1)
    return (always.sum(1) == 1) & ((always | never) == present).all(1) & (wrong >= others)


def _few_samples(run: Run) -> Iterator[Note]:
    """Clients whose accuracy means little."""
    samples = torch.cat([seed_run.total.sum(1) for seed_run in run.compared])
    samples = samples[samples > 0]
    few = int((samples < FEW_SAMPLES).sum())
    if few and run.score is ACCURACY:
        who = "All clients" if few == len(samples) else f"{few:,} of {len(samples):,} clients"
        uncertain = "the accuracy of one is uncertain by 20 points or more"
        yield Note("few samples", f"{who} have fewer than {FEW_SAMPLES} test samples: {uncertain}.")
