"""Every method with its chosen settings, on test data of seeds that tuning did not use."""

from fedtilt.reproduction import Options, load
from fedtilt.reproduction.train_grid import evaluated, method_of
from fedtilt.reproduction.tuned.chosen import chosen_settings
from fedtilt.reproduction.tuned.experiment import cases, measure
from fedtilt.reproduction.tuned.rows import compare_cells, row_settings
from fedtilt.reproduction.tuning.experiment import cases as tuning_cases

METHODS = {"fedavg", "fedprox", "term", "local", "fedavg_finetuned", "ditto", "fedtilt"}


def test_seeds_and_sizes_of_the_cases() -> None:
    all_cases = cases(load("tuned"), Options())
    tuning_seeds = {case.settings["seed"] for case in tuning_cases(load("tuning"), Options())}
    for data in ("mnist", "fashion-mnist"):
        seeds = [c.settings["seed"] for c in all_cases if c.settings["data"] == data]
        assert sorted(set(seeds)) == list(range(10))
        assert not set(seeds) & tuning_seeds
    sizes = {str(c.settings["clients"]) for c in [*all_cases, *tuning_cases(load("tuning"), Options())]}
    assert len(sizes) == 1  # settings are used with the client sizes that they were chosen for
    for case in all_cases:
        for name, setting in case.settings["methods"].items():
            assert method_of(name, setting).name == name


def test_rows_of_a_cell() -> None:
    settings = load("tuned").settings
    rows = row_settings(settings, "mnist", "flips")
    assert set(rows) == METHODS | {f"{m}-noisy" for m in METHODS} | {
        f"{m}-{start}" for m in ("ditto", "fedtilt") for start in ("last", "initial")
    }
    assert rows["ditto"] == {"preset": "ditto", **chosen_settings()["mnist"]["flips"]["validation"]["ditto"]}
    assert rows["ditto-initial"] == rows["ditto-last"] | {"personal_start": "initial"}
    gaussian = set(row_settings(settings, "mnist", "gaussian")) - set(rows)
    assert gaussian == {"fedtilt-captions", "fedtilt-text"}
    assert row_settings(settings, "mnist", "unknown") == {}


def test_a_quick_case_keeps_metrics_on_test_data_alone() -> None:
    experiment = load("tuned").quick_version()
    case = next(case for case in cases(experiment, Options(quick=True)) if "gaussian" in case.name)
    result = measure(case, Options(quick=True, device="cpu"), lambda *_: None)
    assert {split for method in result["methods"].values() for split in method} == {"test"}
    assert set(result["methods"]) == set(case.settings["methods"])
    comparison = compare_cells(experiment, {case.name: result})["digits gaussian"]
    assert set(comparison.rows) == set(row_settings(experiment.settings, "digits", "gaussian"))
    captions = result["methods"]["fedtilt tau=-50 lam=50"]
    assert comparison.values("fedtilt-captions", "accuracy").values == (evaluated(captions)["accuracy"],)
    assert compare_cells(experiment, {})["digits flips"].rows == {}
