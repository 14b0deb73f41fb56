"""Tables as people have them: words for missing cells, headers that differ, mixed dates, unlabelled rows, warnings."""

import json
import math
import warnings

import numpy as np
import pytest
import torch

from fedtilt.data import Federation, Schema, table, transform
from fedtilt.data.tables.merge import merge
from fedtilt.data.tables.settings import TableSettings
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.data.tables.table import new_rows, open_table
from fedtilt.data.tables.text_values import find_codes
from fedtilt.data.tables.values import read_column
from fedtilt.errors import InputError

pandas = pytest.importorskip("pandas")


def frame(n=120, seed=0):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": rng.integers(20, 90, n), "ward": rng.choice(["a", "b"], n), "dose": rng.normal(size=n),
            "ill": ["yes", "no", "no"] * (n // 3),
        }
    )  # fmt: skip


def about(data):
    """The warnings about a data set with clients."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Federation.build(data, **({} if data.client_names else {"clients": 1, "partition": "iid"})).warnings


def test_words_for_missing_cells(tmp_path):
    clean = frame()
    gaps = clean.astype({"age": object}).copy()
    gaps.loc[::5, "age"], gaps.loc[::7, "ward"] = None, None
    dirty = clean.astype({"age": object}).copy()
    dirty.loc[::5, "age"], dirty.loc[::7, "ward"] = -999, "unbekannt"
    dirty.loc[::10, "age"] = "Unbekannt"
    for path, source in ((tmp_path / "gaps.csv", gaps), (tmp_path / "dirty.csv", dirty)):
        source.to_csv(path, index=False)
    settings = {"target": "ill", "missing": ["unbekannt", "-999"]}
    expected = table(tmp_path / "gaps.csv", target="ill")
    for source in (tmp_path / "dirty.csv", dirty):
        data = table(source, **settings)
        assert data.schema.columns == expected.schema.columns
        assert torch.equal(data.x_train, expected.x_train)
        schema = Schema.from_json(json.loads(data.schema.text()))  # it carries the words to new rows
        assert schema == data.schema
        assert torch.equal(transform(source, like=schema), transform(tmp_path / "gaps.csv", like=expected))
    numbers = dirty.assign(age=[-999.0 if n % 5 == 0 else age for n, age in enumerate(clean["age"])])
    assert torch.equal(table(numbers, **settings).x_train, expected.x_train)
    grouped = table(numbers, **settings, group="ward")  # in a group the word is a name
    assert grouped.group_names == {"ward": ("a", "b", "unbekannt")}
    with pytest.raises(InputError, match="missing must be a list, got '-999'"):
        table(numbers, target="ill", missing="-999")


def test_headers_that_differ(tmp_path):
    north, south = frame(seed=0), frame(seed=1)
    (tmp_path / "messy").mkdir()
    north.rename(columns={"age": "Alter", "ill": "krank"}).to_csv(tmp_path / "messy/north.csv", index=False, sep=";")
    south.to_csv(tmp_path / "messy/south.csv", index=False)
    rename = {"Alter": "age", "krank": "ill"}
    data, plain = (
        table(tmp_path / "messy", target="ill", rename=rename),
        table({"north": north, "south": south}, target="ill"),
    )
    assert data.schema.columns == plain.schema.columns
    assert torch.equal(data.x_train, plain.x_train)
    new = transform(tmp_path / "messy/north.csv", like=Schema.from_json(data.schema.to_json()))
    assert torch.equal(new, transform(north, like=plain))
    with pytest.raises(
        InputError, match=r"rename = \{'Altre': 'age2'\} names no column of .*messy; its columns are age, "
    ):
        table(tmp_path / "messy", target="ill", rename=rename | {"Altre": "age2"})
    with pytest.raises(InputError, match="has the column 'age' twice"):
        table(north.assign(Alter=1), target="ill", rename=rename)
    with pytest.raises(InputError, match="rename must be a table, got 'age'"):
        table(north, target="ill", rename="age")
    with pytest.raises(
        InputError, match="has no column 'Alter', 'krank', which .*, but 'age', 'ill'; .*'age' = 'Alter'"
    ):
        table(tmp_path / "messy", target="ill")
    site = open_table(south, TableSettings(target="ill", rename=rename), site=1)  # a site without the old names
    assert site.names == ("age", "ward", "dose")


def test_yes_and_no_in_several_words():
    words = ["Ja", "JA", "nein", "yes", "No", "ja", "NEIN", None]
    data = table(frame().assign(smokes=(words * 15)[:120]), target="ill")
    column = data.schema.column("smokes")
    assert column.kind == "yes/no"
    expected = [{"j": 1, "y": 1, "n": 0}[w.casefold()[0]] if w else column.fill for w in words]
    got = transform(frame(120).assign(smokes=(words * 15)[:120]), like=data)[:8, data.schema.inputs.index("smokes")]
    assert (got * column.deviation + column.mean).tolist() == pytest.approx(expected, abs=1e-6)
    for other in (["f"], ["f", "m"], ["t", "n"], ["yes", "maybe"], ["j"], ["yes", "1"]):
        kind = table(frame().assign(x=(other * 120)[:120]), target="ill").schema.column("x").kind
        assert kind == "category", other


def test_zero_and_one_beside_yes_and_no():
    """As sites merge a column of numbers and one of yes and no."""
    smokes = {"north": ["Ja", "nein", "nein"], "south": [1, 0, 0]}
    data = table({name: frame().assign(smokes=values * 40) for name, values in smokes.items()}, target="ill")
    assert data.schema.column("smokes").kind == "yes/no"
    assert data.schema.column("smokes").mean == pytest.approx(1 / 3, abs=0.01)
    assert table(frame().assign(smokes=[0, 1, 1] * 40), target="ill").schema.column("smokes").kind == "number"


@pytest.mark.parametrize(
    "words", [["Ja", "nein", "NEIN"], ["J", "N", "N"], [1, 0, 0]], ids=["words", "letters", "digits"]
)
def test_labels_in_several_words(words):
    """Of yes and no; sites agree with the simulator."""
    parts = {"north": frame(seed=0).assign(ill=words * 40), "south": frame(seed=1)}
    data = table(parts, target="ill")
    assert data.class_names == ("no", "yes")
    assert torch.cat([data.y_train, data.y_test]).bincount().tolist() == [160, 80]
    settings = TableSettings(target="ill")
    sites = [open_table(part, settings, site=n) for n, part in enumerate(parts.values())]
    schema = merge([site.site_summary(None, 0) for site in sites], settings and sites[0].schema)
    assert schema.classes == ("no", "yes")
    for number, site in enumerate(sites):
        own = site.with_schema(schema).to_dataset()
        assert torch.equal(own.y_train, data.y_train[data.client_train == number])
        assert torch.allclose(own.x_train, data.x_train[data.client_train == number], atol=1e-6)
    assert len(table(parts["north"].replace("NEIN", "nein"), target="ill").class_names) == 2


def test_dates_in_several_formats(tmp_path):
    day = pandas.Timestamp("2026-01-31")
    days = [day + pandas.Timedelta(days=3 * n) for n in range(120)]
    formats = ["%Y-%m-%d", "%d.%m.%Y", "%d %b %Y", "%d.%m.%y"]
    mixed = frame().assign(when=[d.strftime(formats[n % 4]) for n, d in enumerate(days)])
    clean = frame().assign(when=days)
    data, expected = table(mixed, target="ill"), table(clean, target="ill")
    assert data.schema.column("when").format == "%d.%m.%Y|%d.%m.%y|%d %b %Y"
    assert torch.equal(data.x_train, expected.x_train)
    assert torch.equal(transform(mixed, like=data), transform(clean, like=expected))
    files = {"us": frame(seed=0).assign(when=[d.strftime("%m/%d/%Y") for d in days]),
             "uk": frame(seed=1).assign(when=[d.strftime("%d/%m/%Y") for d in days])}  # fmt: skip
    both = table(files, target="ill")  # each file proves its own order of month and day
    same = table({name: part.assign(when=days) for name, part in files.items()}, target="ill")
    assert torch.equal(both.x_train, same.x_train)


def days_of(texts, **others):
    """The dates that a column of texts is read as, in ISO's way, and the warnings about them."""
    rows = frame().assign(when=(list(texts) * 120)[:120], **others)
    data = table(rows, target="ill")
    found = read_column(open_table(rows, TableSettings(target="ill")).reader, "when", data.schema.column("when"))
    assert found.kind == "date"
    days = [None if math.isnan(day) else str(np.datetime64(math.floor(day), "D")) for day in found.values]
    again = transform(rows, like=Schema.from_json(data.schema.to_json()))
    assert torch.equal(again[data.rows_train], data.x_train)
    return days[: len(texts)], [text for text in about(data) if "'when' has" in text]


@pytest.mark.parametrize(
    ("written", "dates"),
    [
        (["20260131", "20251224"], ["2026-01-31", "2025-12-24"]),
        ([20260131, 20251224], ["2026-01-31", "2025-12-24"]),  # whole numbers
        (["31/01/26", "24/12/25"], ["2026-01-31", "2025-12-24"]),
        (["01-31-2026", "12-24-2025"], ["2026-01-31", "2025-12-24"]),
        (["31-01-2026", "24-12-2025"], ["2026-01-31", "2025-12-24"]),
        (["31/01/2026 23:15:00", "24/12/2025 08:00:00"], ["2026-01-31", "2025-12-24"]),
        (["01/31/2026 11:15 PM", "12/24/2025 8:00 AM"], ["2026-01-31", "2025-12-24"]),
        (["31-JAN-26", "24-DEC-25"], ["2026-01-31", "2025-12-24"]),
        (["2026.01.31", "2025.12.24"], ["2026-01-31", "2025-12-24"]),
        (["2026-01-31T23:15:00.123Z", "unknown", "2025-12-24 00:30:00+01:00"], ["2026-01-31", None, "2025-12-23"]),
        (["31.01.2026", "00.00.0000", "24.12.2025"], ["2026-01-31", None, "2025-12-24"]),
        (["12.05.45", "31.01.99"], ["1945-05-12", "1999-01-31"]),  # births, not of 2045
    ],
)
def test_dates_as_databases_write_them(written, dates):
    assert days_of(written) == (dates, [])


def test_years_of_two_digits_in_two_centuries_are_pointed_out():
    assert days_of(["12.05.45", "31.01.07"]) == (
        ["1945-05-12", "2007-01-31"],
        ["column 'when' has years of two digits, which are read as 1930 to 2029; write four digits if some are others"],
    )


def test_other_columns_of_a_file_tell_month_and_day():
    clear = (["31/01/2026", "24/12/2025"] * 60, ["01/31/2026", "12/24/2025"] * 60)
    assert days_of(["03/04/2026", "05/06/2026"], born=clear[0]) == (["2026-04-03", "2026-06-05"], [])
    assert days_of(["03/04/2026", "05/06/2026"], born=clear[1]) == (["2026-03-04", "2026-05-06"], [])
    for written, expected in (("03/04/2026", "2026-03-04"), ("03-04-2026", "2026-04-03")):
        dates, (warning,) = days_of([written, written[:-1] + "5"])
        assert dates[0] == expected
        assert "can be month/day or day/month; they are read as" in warning


@pytest.mark.parametrize("code", ["9999-12-31", "2999-12-31", "1900-01-01"])
def test_dates_that_stand_for_none(code):
    days = [f"2026-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(119)]
    written = [code if n % 7 == 0 else day for n, day in enumerate(days)]
    found, warnings_ = days_of([*written, days[0]])
    assert found == [None if n % 7 == 0 else day for n, day in enumerate(days)] + [days[0]]
    assert warnings_ == [
        f"column 'when' has {code} in several rows, far outside its other dates, which count as missing; set "
        "find_missing = false if they are dates"
    ]
    rows = frame().assign(when=[*written, days[0]])
    by_hand = table(rows, target="ill", missing=[code])
    assert torch.equal(table(rows, target="ill").x_train, by_hand.x_train)
    one = table(frame().assign(when=[code, *days]), target="ill")
    (text,) = [text for text in about(one) if "'when'" in text] or [""]
    assert text.startswith(f"column 'when' has {code} in 1 training rows") or 0 not in one.rows_train
    sites = [part.assign(when=written[:60]) for part in (rows[:60], rows[60:])]
    opened = [open_table(part, TableSettings(target="ill"), site=n) for n, part in enumerate(sites)]
    summaries = [SiteSummary.from_json(site.site_summary(None, 0).to_json()) for site in opened]
    assert merge(summaries, opened[0].schema).column("when").missing == by_day(code)


def by_day(text):
    return ((np.datetime64(text) - np.datetime64("1970-01-01")).astype(float),)


def test_unlabelled_rows():
    whole = frame()
    unlabelled = pandas.concat([whole, frame(30, 1).assign(ill=[None, "", "?"] * 10)]).reset_index(drop=True)
    with pytest.raises(
        InputError, match="row 120, column 'ill', which is the target; fill it, or leave such rows out: drop_"
    ):
        table(unlabelled, target="ill", missing=["?"])
    data, expected = (
        table(source, target="ill", missing=["?"], drop_unlabelled=True) for source in (unlabelled, whole)
    )
    for key in ("x_train", "y_train", "x_test", "y_test", "rows_train", "rows_test"):
        assert torch.equal(getattr(data, key), getattr(expected, key))
    numbers = unlabelled.assign(ill=[n / 7 if n < 120 else None for n in range(150)])
    with pytest.raises(
        InputError, match="no number in row 120, column 'ill', which is the target; fill it, or leave such"
    ):
        table(numbers, target="ill", task="regression")
    data = table(numbers, target="ill", task="regression", drop_unlabelled=True)
    assert (len(data.y_train) + len(data.y_test), int(data.rows_train.max()) < 120) == (120, True)
    with pytest.raises(InputError, match="target = 'ill' has no label in DataFrame; name another column"):
        table(whole.assign(ill=None), target="ill", drop_unlabelled=True)


def test_numbers_that_may_mean_unknown():
    rows = frame()
    for value, text in ((-999, "-999"), (9999, "9999"), (999.9, "999.9")):
        ages = [value if n % 6 == 0 else age for n, age in enumerate(rows["age"])]
        data = table(rows.assign(age=ages), target="ill")
        assert about(data) == (
            f"column 'age' has {text} in several rows, far outside its other numbers, which count as missing; set "
            "find_missing = false if they are numbers",
        )
        by_hand = table(rows.assign(age=ages), target="ill", missing=[text])
        assert about(by_hand) == ()
        assert torch.equal(data.x_train, by_hand.x_train)
        one = pandas.DataFrame({"age": [float(value)], "ward": ["a"], "dose": [0.0]})  # the schema knows the code
        like = Schema.from_json(data.schema.to_json())
        assert torch.equal(transform(one, like=like), transform(one.assign(age=math.nan), like=like))
        (found,) = about(table(rows.assign(age=ages), target="ill", find_missing=False))
        assert found.startswith(f"column 'age' has {text} in ")
        assert f"; if it means unknown, set missing = ['{text}']" in found
    coded = rows.assign(age=[-9 if n % 6 == 0 else 20 + n % 60 for n in range(120)])  # not far enough to be certain
    assert about(table(coded, target="ill")) == (
        "column 'age' has -9 in 14 training rows, and all others are in 21 to 79; if it means unknown, set missing = "
        "['-9']",
    )
    for usual in (
        range(60),
        range(-9, 60),
        range(900, 1000),
        [98.5, 99.0, 99.5, 99.2],
    ):  # 99 and 999 among numbers like them
        assert about(table(rows.assign(age=(list(usual) * 120)[:120]), target="ill")) == ()


def test_names_that_differ_in_case_or_blanks():
    rows = frame().assign(ward=["North Wing", "north wing", "North  Wing", "south"] * 30)
    joined = table(rows, target="ill")
    assert about(joined) == ()
    (found,) = about(table(rows, target="ill", ignore_case=False))
    assert found == (
        "column 'ward' has names that differ only in case or blanks, such as 'North  Wing' and 'North Wing'; set "
        "ignore_case = true to merge them"
    )
    data = table(rows, target="ill", ignore_case=True)
    assert torch.equal(joined.x_train, data.x_train)
    assert data.schema.column("ward").categories == ("north wing", "south")
    assert about(data) == ()
    new = transform(
        pandas.DataFrame({"age": [50.0], "ward": ["NORTH WING"], "dose": [0.0]}),
        like=Schema.from_json(data.schema.to_json()),
    )
    assert new[0, 1:3].tolist() == [1, 0]
    labels = frame().assign(ill=["Ill", "ill", "well"] * 40)
    (found,) = about(table(labels, target="ill"))
    assert (
        found
        == "classes 'Ill' and 'ill' differ only in case or blanks; write them alike (for a table: ignore_case = true)"
    )
    assert table(labels, target="ill", ignore_case=True).class_names == ("ill", "well")


def test_labels_that_may_mean_unknown():
    rows = frame().assign(ill=["yes", "no", "NA"] * 40)
    (found,) = about(table(rows, target="ill"))
    assert found.startswith("class 'NA' may mean that the label is unknown; if so, leave its rows out")
    assert about(table(rows, target="ill", missing=["NA"], drop_unlabelled=True)) == ()


def test_clients_without_a_common_class():
    parts = {"north": frame(seed=0), "süd": frame(seed=1).assign(ill=["krank", "gesund", "gesund"] * 40)}
    (found,) = about(table(parts, target="ill"))
    assert found == (
        "no two clients have a class in common, such as 'no' at 'north' and 'gesund' at 'süd'; if their labels mean "
        "the same, write them alike"
    )
    assert about(table(parts | {"west": frame(seed=2)}, target="ill")) == ()


def test_codes_are_read_only_where_they_are_certain():
    usual = list(range(1, 60))
    certain = {
        (-9,): [0, 1, 0, 1, 1, 0],
        (-99, -999): usual,
        (-999,): [100, 20_000, 5, 70, 8],
        (9999,): [-3.0, 0, 2.5, 7, 9],
    }
    for codes, others in certain.items():
        assert find_codes(np.sort([float(v) for v in [*others, *codes, *codes, *codes]])) == tuple(sorted(codes))
    for codes, others in {
        (-999,): [-999, 1, 2, 3, 4],  # a code and nothing else that is usual: 4 others
        (99,): list(range(10)),  # no code
        (-9,): usual,  # a number like the others
        (999,): [10, 990, 500, 4, 5, 6],
        (-99,): [-80, 10, 20, 5, 6, 7],
    }.items():
        assert find_codes(np.sort([float(v) for v in [*others, *codes, *codes, *codes]])) == ()
    assert find_codes(np.array([-999.0, *map(float, usual)])) == ()  # in one row


def test_a_bad_cell_among_new_rows_costs_its_row_alone():
    rows = frame().assign(
        ward=["Ja", "nein", "nein", "J"] * 30, when=[f"2026-01-{1 + n % 28:02}" for n in range(120)],
        pay=["950", "1.200,5"] * 60,
    )  # fmt: skip
    data = table(rows, target="ill")
    new = rows[:6].astype(str)
    bad = {1: ("ward", "perhaps"), 2: ("age", "-999"), 3: ("when", "9999-12-31"), 4: ("pay", "1,2k")}
    for row, (name, text) in bad.items():
        new.loc[row, name] = text
    found = new_rows(new, data)
    assert {row: found.problems[row].split(" in column")[0] for row in found.problems} == {
        row: repr(text) for row, (_, text) in bad.items()
    }
    assert torch.equal(found.x[[0, 5]], transform(rows.iloc[[0, 5]], like=data))
    assert found.problems[2].endswith("and may mean unknown")
    one = transform(rows.iloc[3:4], like=data)  # J alone
    assert torch.equal(one, transform(rows.iloc[3:4].assign(ward="ja"), like=data))
    as_read = table(rows, target="ill", find_missing=False)
    assert torch.isfinite(transform(new.drop([1, 4]), like=as_read)).all()


def test_columns_of_different_units_are_not_renamed_to_one_in_silence():
    units = {"north": "Glukose [mg/dl]", "south": "glucose (mmol/l)"}
    parts = {name: frame(seed=n).rename(columns={"dose": unit}) for n, (name, unit) in enumerate(units.items())}
    data = table(parts, target="ill", rename=dict.fromkeys(units.values(), "glucose"))
    assert data.warnings[0] == (
        "column 'glucose' has numbers of 'Glukose [mg/dl]' and 'glucose (mmol/l)', whose units differ; renaming "
        "converts nothing: convert one of them"
    )
    for one, other in (("Glukose [mg/dl]", "glucose (MG/DL)"), ("Diagnose (Schlüssel)", "code (ICD)")):
        parts = {
            name: frame(seed=n).rename(columns={"dose": old})
            for n, (name, old) in enumerate({"a": one, "b": other}.items())
        }
        assert table(parts, target="ill", rename={one: "x", other: "x"}).warnings == ()


def test_words_for_unknown_beside_numbers_and_yes_and_no():
    rows = frame().assign(
        age=["unknown" if n % 4 == 0 else str(n % 50) for n in range(120)],
        ward=[["Ja", "nein", "unbekannt"][n % 3] for n in range(120)],
    )
    data = table(rows, target="ill")
    assert [data.schema.column(name).kind for name in ("age", "ward")] == ["number", "yes/no"]
    by_hand = table(rows, target="ill", missing=["unknown", "unbekannt"])
    assert torch.equal(data.x_train, by_hand.x_train)
    names = table(rows.assign(ward=["north", "south", "unknown"] * 40), target="ill").schema.column("ward")
    assert (names.kind, names.categories) == ("category", ("north", "south", "unknown"))
    kinds = table(rows.assign(age=1.0), target="ill", find_missing=False).schema.column("ward")
    assert kinds.categories == ("Ja", "nein", "unbekannt")


def test_single_letters_are_joined_across_clients_but_not_within_one():
    parts = {
        "north": frame(seed=0).assign(ward=["a", "b", "b"] * 40),
        "south": frame(seed=1).assign(ward=["A", "B"] * 60),
    }
    data = table(parts, target="ill")
    assert data.schema.column("ward").categories == ("A", "b")  # the most frequent spelling
    by_hand = table(parts, target="ill", ignore_case=True)
    assert sorted(data.x_train.sum(0).tolist()) == pytest.approx(sorted(by_hand.x_train.sum(0).tolist()), abs=1e-4)
    genes = frame().assign(ward=["a", "A", "b"] * 40)
    assert table(genes, target="ill").schema.column("ward").categories == ("A", "a", "b")
    assert "set ignore_case = true to merge them" in about(table(genes, target="ill"))[0]
