"""The sentences that say whether a run is any good, on counts and predictions with a known answer."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtilt.data.groups import CLASS
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.evaluator import Grouping
from fedtilt.evaluation.gains import client_gains
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.predictions import CLIENT, Predictions
from fedtilt.evaluation.round_metrics import round_metrics
from fedtilt.evaluation.true_spread import true_spread
from fedtilt.report.compare import overview_metrics, rare_class
from fedtilt.report.decision_metrics import decision_figures
from fedtilt.report.figure import Style
from fedtilt.report.figures import who_gains
from fedtilt.report.notes import model_notes
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.report.summary import fairness_beyond_chance
from fedtilt.report.verdict import thresholds, verdict

CLIENTS, SAMPLES = 8, 40
OWNER = torch.arange(CLIENTS).repeat_interleave(SAMPLES)
LABELS = (torch.arange(CLIENTS * SAMPLES) % SAMPLES < 12).long()  # class 1 has 30 %


def predicting(wrong_per_client: list[int], labels: torch.Tensor = LABELS) -> Predictions:
    """Predictions with that many wrong ones at each client, spread over its samples."""
    outputs = torch.nn.functional.one_hot(labels, 2).float() * 0.8 + 0.1
    for client, wrong in enumerate(wrong_per_client):
        rows = (OWNER == client).nonzero()[:, 0][torch.linspace(0, SAMPLES - 1, wrong).long()] if wrong else []
        outputs[rows] = outputs[rows].flip(-1)
    by = {
        CLIENT: Grouping(CLIENT, tuple(f"ward {n}" for n in range(CLIENTS)), OWNER),
        CLASS: Grouping(CLASS, ("no", "yes"), labels),
    }
    return Predictions(outputs=outputs, groupings=by)


def run_of(
    methods: dict[str, Predictions], baselines: dict[str, Predictions], shared: Predictions | None = None
) -> Run:
    """A finished run of one seed with these predictions; `shared` are those of the first method's shared model."""
    counts, total = {}, torch.zeros(0)
    for name, found in (methods | baselines).items():
        sums, total = found.counts()
        personal = sums if shared is not None and name == next(iter(methods)) else None
        base = sums if personal is None else shared.counts()[0]
        counts[name] = Counts(base, personal, torch.zeros(CLIENTS, dtype=torch.bool))
    none = torch.zeros(CLIENTS, dtype=torch.bool)
    metrics = {name: round_metrics(found, total, none) for name, found in counts.items()}
    seed_run = SeedRun(
        seed=0, history={name: [(5, metrics[name])] for name in methods},
        counts={name: counts[name] for name in methods}, total=total, has_outliers=none,
        client_names=tuple(f"ward {n}" for n in range(CLIENTS)), class_names=("no", "yes"),
        baselines={name: metrics[name] for name in baselines},
    )  # fmt: skip
    fingerprint = {"methods": dict.fromkeys(methods), "train": {"rounds": 5}, "clients": CLIENTS}
    run = Run(
        folder=Path(), name="run", started="", environment={}, fingerprint=fingerprint, spec=None, seeds=(0,),
        seed_runs=(seed_run,),
    )  # fmt: skip
    vars(run)["predictions"] = ({**methods, **baselines},)
    return run


def majority() -> Predictions:
    return replace(predicting([0] * CLIENTS), outputs=torch.tensor([0.7, 0.3]).expand(CLIENTS * SAMPLES, 2))


def test_federation_helps_all_but_the_client_that_is_better_off_alone() -> None:
    ours = predicting([2, 2, 3, 2, 2, 3, 2, 14])
    alone = predicting([8, 7, 9, 8, 7, 8, 9, 0])
    helps, who, shares, constant = verdict(run_of({"fedavg": ours}, {"local": alone, "majority": majority()}))
    assert helps.startswith(
        "Federation and every client alone are not told apart: against every client alone, fedavg changes the "
    )
    assert who == "Better off alone beyond chance: ward 7."
    outcomes = Counter(client.outcome for client in client_gains(ours, alone, "local").clients)
    assert outcomes == {"gains": 1, "ties": 6, "loses": 1}
    assert shares == "By the 95 % intervals of their own rows: 1 gains, 6 tie, 1 loses."
    assert constant.startswith(
        "Predicting the majority class has 70.0 %; against it, fedavg changes the accuracy by +20.6"
    )
    ours = predicting([2, 2, 3, 2, 2, 3, 2, 4])
    helps, who, _, _ = verdict(
        run_of({"fedavg": ours}, {"local": predicting([8, 7, 9, 8, 7, 8, 9, 8]), "majority": majority()})
    )
    assert helps.startswith(
        "Federation helps: against every client alone, fedavg changes the accuracy by +13.8 points (95 % "
    )
    assert who == "No client has a better accuracy alone."
    equal, who, *_ = verdict(
        run_of({"fedavg": predicting([2] * 8)}, {"local": predicting([2, 2, 2, 2, 2, 2, 3, 1]), "majority": majority()})
    )
    assert "fedavg changes the accuracy by 0.0 points" in equal
    assert who == "1 of 8 clients has a better accuracy alone, none beyond chance: ward 7."
    hurts, *_ = verdict(run_of({"fedavg": alone}, {"local": predicting([1, 0, 2, 1, 0, 1, 2, 0])}))
    assert hurts.startswith("Federation does not help here: ")


def test_fairness_beyond_chance_has_one_estimate_and_its_interval() -> None:
    """The table has the estimate, and the text the interval."""
    ours = predicting([1, 5, 9, 2, 12, 3, 8, 20])
    spread = true_spread(*ours.counts())
    text = fairness_beyond_chance(run_of({"fedavg": ours}, {}))
    assert (
        text == f"std over clients of the true accuracy; 95 % intervals: fedavg {spread.low:.1f} to {spread.high:.1f}"
    )


def test_the_figure_of_who_gains_has_the_intervals_of_the_clients() -> None:
    ours, alone = predicting([2, 2, 3, 2, 2, 3, 2, 14]), predicting([8, 7, 9, 8, 7, 8, 9, 0])
    run = run_of({"fedavg": ours}, {"local": alone, "majority": majority(), "pooled boosting": ours})
    (figure,) = who_gains(run, ["fedavg"])
    assert [trace["meta"]["against"] for trace in figure.data] == ["local", "pooled boosting"]
    worst = figure.rows[0]
    assert worst[:4] == ("fedavg", "local", "ward 7", SAMPLES)
    assert worst[-1] == "loses"
    assert figure.data[0]["y"][0] - figure.data[0]["error_y"]["arrayminus"][0] == pytest.approx(worst[5], abs=1e-3)
    assert set(figure.data[1]["y"]) == {0.0}
    assert who_gains(run_of({"fedavg": ours}, {"majority": majority()}), ["fedavg"]) == []


def test_no_method_is_better_than_the_majority_and_pooled_rows_are() -> None:
    ours = {"fedavg": predicting([12] * CLIENTS), "ditto": predicting([12, 11, 13, 12, 12, 11, 13, 12])}
    constant, pooled = verdict(run_of(ours, {"majority": majority(), "pooled boosting": predicting([3] * CLIENTS)}))
    assert (
        "70.0 %, and no method is better beyond chance: against it, fedavg changes the accuracy by 0.0 points"
        in constant
    )
    assert pooled.startswith(
        "With all rows in one place, gradient boosting has 92.5 % and is better: against it, fedavg"
    )
    assert verdict(run_of(ours, {})) == []


def model_texts(run: Run) -> list[str]:
    return [note.text for note in model_notes(run)]


def test_personal_models_that_are_worse_than_the_shared_one() -> None:
    worse = predicting([9, 8, 7, 9, 8, 9, 8, 9])
    (text,) = model_texts(run_of({"ditto": worse}, {}, shared=predicting([3, 4, 3, 3, 4, 3, 4, 3])))
    assert text.startswith(
        "The personal models of ditto are worse than its shared model: accuracy 79.1 % against 91.6 %"
    )
    assert "chance" not in text
    little = predicting([4, 3, 4, 2, 5, 3, 4, 4])
    assert model_texts(run_of({"ditto": little}, {}, shared=predicting([3, 4, 3, 3, 4, 3, 4, 3]))) == []  # chance
    assert model_texts(run_of({"ditto": worse}, {}, shared=worse)) == []


def test_models_that_predict_one_class() -> None:
    (text,) = model_texts(run_of({"fedavg": majority()}, {}))
    assert text.startswith("fedavg predicts the same class for every test sample")
    by_client = majority()
    flipped = torch.where((OWNER % 2 == 1)[:, None], by_client.outputs.flip(-1), by_client.outputs)
    (text,) = model_texts(run_of({"fedtilt": replace(by_client, outputs=flipped)}, {}))
    assert text == "fedtilt predicts one class only for 8 of 8 clients with several classes: it has collapsed."
    assert model_texts(run_of({"fedavg": predicting([12] * CLIENTS)}, {})) == []


def test_the_threshold_of_a_rare_class_in_words_and_in_the_confusion() -> None:
    labels = (torch.arange(CLIENTS * SAMPLES) % SAMPLES < 2).long()
    found = predicting([0] * CLIENTS, labels)
    found.outputs[:] = torch.stack([0.9 - 0.2 * labels, 0.1 + 0.2 * labels], 1)  # 0.3 for yes, 0.1 for no
    run = run_of({"fedavg": found}, {})
    (text,) = model_texts(run)
    assert text.startswith("fedavg predicts the same class for every test sample: as models of a rare class do")
    assert thresholds(run) == []
    object.__setattr__(run.seed_runs[0], "thresholds", {"fedavg": Threshold("yes", 0.2, "f1")})
    assert thresholds(run) == [
        "With a threshold on the probability of yes, chosen on validation data: "
        "fedavg (0.2) finds 16 of 16 and is right in 16 of 16."
    ]
    styles = {"fedavg": Style("#000000", "solid", "circle")}
    figures = decision_figures({"fedavg": [found]}, styles, run.seed_runs[0].thresholds)
    assert [figure.name for figure in figures] == ["roc", "precision-recall", "confusion", "reliability"]
    roc, precision_recall, confusion, _ = figures
    assert [row[1:] for row in roc.rows] == [(0, 0), (0, 100), (100, 100)]
    assert [row[1:] for row in precision_recall.rows] == [(100, 100), (100, 5)]
    assert [row[1:] for row in confusion.rows] == [
        ("no", "no", 304), ("no", "yes", 0), ("yes", "no", 0), ("yes", "yes", 16)
    ]  # fmt: skip


def test_clients_with_few_test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtilt.report.notes.FEW_SAMPLES", 41)
    (text,) = model_texts(run_of({"fedavg": predicting([4] * CLIENTS)}, {}))
    assert text.startswith("All clients have fewer than 41 test samples")


def test_a_rare_class_leads_and_is_compared_by_auprc() -> None:
    labels = (torch.arange(CLIENTS * SAMPLES) % SAMPLES < 2).long()  # 5 %
    good, alone = predicting([1] * CLIENTS, labels), predicting([8] * CLIENTS, labels)
    constant = replace(good, outputs=torch.tensor([0.95, 0.05]).expand(CLIENTS * SAMPLES, 2))
    run = run_of({"fedavg": good}, {"local": alone, "majority": constant})
    assert rare_class(run) == "yes"
    assert [m.key for m in overview_metrics(run)][:3] == ["auprc", "auroc", "accuracy"]
    helps, random = verdict(run)
    assert helps.startswith("Federation helps: against every client alone, fedavg changes the AUPRC by +0.")
    assert random.startswith(
        "A random ranking has an AUPRC of 0.050 and an AUROC of 0.5; against it, fedavg changes the AUROC by +0."
    )
    assert rare_class(run_of({"fedavg": predicting([1] * CLIENTS)}, {})) is None


def test_figures_of_one_class_alone_and_of_long_names() -> None:
    found = predicting([1] * CLIENTS, torch.zeros_like(LABELS))
    names = tuple(f"a disease with a long name, type {k}" for k in (1, 2))
    by = {**found.groupings, CLASS: found.groupings[CLASS]._replace(names=names)}
    styles = {"fedavg": Style("#000000", "solid", "circle")}
    confusion, reliability = decision_figures({"fedavg": [replace(found, groupings=by)]}, styles, {})  # no ROC
    assert (confusion.name, reliability.name) == ("confusion", "reliability")
    assert confusion.data[0]["x"] == ["a disease with a … (0)", "a disease with a … (1)"]


def test_a_mean_over_clients_counts_those_with_test_data() -> None:
    run = run_of({"fedavg": predicting([2] * 8)}, {"local": predicting([8, 7, 9, 8, 7, 8, 9, 8])})
    run.fingerprint["clients"] = CLIENTS + 3  # three have no test data
    assert verdict(run)[0].endswith("mean over 8 clients.")
