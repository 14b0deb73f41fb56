"""The page of an audit: thumbnails that decode to the samples, escaped names, and rows of a table."""

import base64
import io
from functools import partial
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.data.tables.reader import original_rows
from fedtilt.report.audit_page import build_audit_page, png_address


@pytest.mark.parametrize("shape", [(1, 8, 6), (3, 5, 7), (4, 3, 3)])
def test_a_thumbnail_is_the_image(shape: tuple[int, ...]) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = torch.randint(0, 256, shape, dtype=torch.uint8)
    content = base64.b64decode(png_address(image).removeprefix("data:image/png;base64,"))
    decoded = torch.tensor(list(image_module.open(io.BytesIO(content)).tobytes()), dtype=torch.uint8)
    assert torch.equal(decoded.reshape(*shape[1:], shape[0]).permute(2, 0, 1), image)
    assert png_address(image.float() / 255) == png_address(image)


def test_large_images_are_thinned_out() -> None:
    assert len(png_address(torch.zeros(3, 1000, 1000, dtype=torch.uint8))) < 2000


def test_the_page_escapes_names_and_has_every_section() -> None:
    x, y = torch.randn(80, 4, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 2
    x[:, 0] += 6 * y
    y[::7] = 1 - y[::7]  # of both classes
    clients = {"<b>north</b>": (x[:40], y[:40]), "south": (x[40:], y[40:])}
    fed = ft.Federation.from_clients(clients, class_names=["<i>ill</i>", "well"])
    model = partial(ft.models.mlp, hidden=(8,))
    result = ft.run([ft.fedavg()], fed, model, rounds=8, participation=1.0, epochs=3, lr=0.1, audit=True)
    audit = result.audit()
    page = build_audit_page("run", audit, result.audit_clients(), fed, round=8, seed=0, csv="suspects.csv")
    assert "<b>north</b>" not in page
    assert "&lt;b&gt;north&lt;/b&gt;" in page
    assert "labelled <b>&lt;i&gt;ill&lt;/i&gt;</b>, looks like <b>well</b>" in page
    assert "A hard but correct sample looks bad too" in page
    for heading in ("How many suspects", "Wrong labels by client", "Confusions of labels", "Clients"):
        assert heading in page
    assert page.count('class="suspect"') == len(audit.suspects()) > 3


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_of_a_table_are_found_by_their_sample(tmp_path: Path, kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [
        {"site": f"s{k % 2}", "label": "ab"[k % 2 if k % 3 else 0], "v": k / 4, "text": f"t\n{k}"} for k in range(20)
    ]
    path = tmp_path / f"t.{kind}"
    frame = pandas.DataFrame(rows)
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    data = ft.data.table(path, target="label", client="site", drop=["text"])
    fed = ft.Federation.build(data)
    for client in range(2):
        samples = fed.train_index[client].tolist()
        found = original_rows(data, samples)
        assert set(found) == set(samples)
        for sample in samples:
            assert float(found[sample]["v"]) == rows[int(data.rows_train[sample])]["v"]
            assert found[sample]["label"] == data.class_names[int(data.y_train[sample])]
