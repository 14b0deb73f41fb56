"""A person's own table: what is read, and the row and column of what cannot be."""

import io

import pytest
import torch

from fedtilt.data import table
from fedtilt.errors import InputError

CSV = "age,site,dose,well\n" + "".join(
    f"{20 + n},{'AB'[n % 2]},{n * 0.5},{'yes' if n % 4 < 2 else 'no'}\n" for n in range(16)
)


def write(tmp_path, text, name="sites.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_with_clients(tmp_path):
    data = table(write(tmp_path, CSV), target="well", client="site")
    assert data.name == "sites"
    assert data.class_names == ("no", "yes")
    assert data.client_names == ("A", "B")
    assert data.x_train.shape == (12, 2)
    assert data.x_test.shape == (4, 2)
    assert data.client_test.bincount().tolist() == [2, 2]
    for client in (0, 1):
        assert data.y_test[data.client_test == client].bincount(minlength=2).tolist() == [1, 1]
    assert data.x_train.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert data.x_train.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)
    # age and dose rise together, so standardised they are the same number
    assert torch.allclose(data.x_test[:, 0], data.x_test[:, 1], atol=1e-6)


def test_csv_details(tmp_path):
    text = "\ufeffa,b,label\n1,5,10\n\n2,5,9\n3,5,10\n4,5,9\n"
    data = table(write(tmp_path, text), target="label", test_share=0.5)
    assert data.class_names == ("9", "10")  # numbers sort by value
    assert data.client_train is None
    assert data.x_train[:, 1].tolist() == [0, 0]  # a constant feature
    tabs = table(write(tmp_path, text.replace(",", "\t"), "x.tsv"), target="label", test_share=0.5)
    assert torch.equal(tabs.x_train, data.x_train)
    other = {table(write(tmp_path, CSV), target="well", client="site", seed=s).x_test.sum().item() for s in range(5)}
    assert len(other) > 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CSV.replace("23,B", "old,B"), r"'old' in row 5, column 'age'"),
        (CSV.replace("23,B", ",B"), r"an empty cell in row 5, column 'age'"),
        (CSV.replace("23,B", "nan,B"), r"'nan' in row 5, column 'age'"),
        (CSV.replace("23,B", "23,"), r"empty cell in row 5, column 'site'"),
        (CSV.replace("23,B", "23,B,7"), r"5 cells in row 5 but 4 columns"),
        (CSV.replace("dose", "age"), r"'age' twice"),
        (CSV.replace("well", "ill"), r"target = 'well' is not a column .* age, site, dose, ill"),
        (CSV.replace("site", "ward"), r"client = 'site' is not a column"),
        (CSV.replace("yes", "no"), r"one class, 'no'"),
        ("site,well\nA,1\nB,2\n", r"no feature column"),
        ("age,site,dose,well\n", r"0 rows"),
        ("", r"is empty"),
    ],
)
def test_bad_tables_name_row_and_column(tmp_path, text, says):
    with pytest.raises(InputError, match=says):
        table(write(tmp_path, text), target="well", client="site")


def test_bad_table_arguments(tmp_path):
    path = write(tmp_path, CSV)
    with pytest.raises(InputError, match=r"does not exist"):
        table(tmp_path / "no.csv", target="well")
    with pytest.raises(InputError, match=r"ending '.xlsx'"):
        table(tmp_path / "no.xlsx", target="well")
    with pytest.raises(InputError, match=r"test_share = 1"):
        table(path, target="well", test_share=1)
    with pytest.raises(InputError, match=r"both 'well'"):
        table(path, target="well", client="well")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"UTF-8"):
        table(path, target="well")


def test_parquet_reads_like_csv(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(CSV))
    path = write(tmp_path, "", "sites.parquet")
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)
    data, same = (table(p, target="well", client="site") for p in (path, write(tmp_path, CSV)))
    assert torch.equal(data.x_train, same.x_train)
    assert torch.equal(data.client_test, same.client_test)
    frame.loc[3, "age"] = None
    with pytest.raises(InputError, match=r"empty cell in row 5, column 'age'"):
        table(path, target="well", client="site")

    def no_engine(path):
        raise ImportError("no engine")

    monkeypatch.setattr(pandas, "read_parquet", no_engine)
    with pytest.raises(InputError, match=r"pip install \"fedtilt\[report\]\""):
        table(path, target="well")
