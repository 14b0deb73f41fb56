"""The page is built from stored results, all or some; the one in docs is up to date."""

import re
from pathlib import Path

import pytest

from reproduction import Options, load
from reproduction.chapter import CaptionedFigure, Table, Text, leading_number
from reproduction.experiments import kind_of
from reproduction.page.build import build_page
from reproduction.page.html import as_html, prose
from reproduction.page.markdown import LEADERBOARD, front_page, site_pages, with_leaderboard
from reproduction.page.svg import up_to_date, write_svgs
from reproduction.results import CaseResult, ResultsFolder
from tests.helpers.handmade_results import comparison_result, metrics, write_tuned_results
from tests.reproduction.page.published import published_page

DOCS = Path(__file__).parents[3] / "docs" / "reproduction"


def whole_text(folder: Path) -> str:
    page = build_page(ResultsFolder(folder))
    return "\n".join([front_page(page)[0], *site_pages(page).values()])


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    """Clean MNIST with two seeds, as if measured in full."""
    folder, experiment = ResultsFolder(tmp_path), load("clean")
    for case in kind_of(experiment).cases(experiment, Options(seeds=2))[:2]:
        seed = case.settings["seed"]
        result = comparison_result(metrics(95.0 + seed), metrics(97.0 + seed), metrics(98.5 + seed, 1.0))
        stored = CaseResult(
            case=case.name, what=case.what, quick=False, seeds=2, settings=case.settings, seconds=60.0, result=result,
            environment={"device": "NVIDIA H200", "torch": "2.11.0", "fedtilt": "0.1.0"},
        )  # fmt: skip
        folder.append("clean", stored)
    return folder


def test_markdown_shows_the_numbers(folder: ResultsFolder) -> None:
    page = whole_text(folder.folder)
    assert "| mnist | FedTilt (paper’s tilts) | **99.00 ± 0.71**<br>98.53 (+0.47) |" in page
    assert "| mnist | FedAvg | w | 95.50 ± 0.71 |" in page
    assert "| mnist | **+1.50**<br>+1.18 to +1.82 |" in page
    assert "Not measured yet: fashion-mnist, cifar10." in page
    assert "\nNot measured yet: Every method tuned with the same budget, " in page
    assert "Measured with fedtilt 0.1.0, older; this is" in page
    assert "| clean | 2 | NVIDIA H200 | 2.11.0 | 0.1.0 | 2.0 |" in page
    assert "quick run" not in page
    (figure,) = build_page(folder).figures
    assert '<figure class="plot" id="clean-mnist-curves"><script type="application/json">{' in page
    assert "tau 50, lam 100 (2)" in page
    bands = [trace for trace in figure.figure["data"] if "fill" in trace]
    assert len(bands) * 2 == len(figure.figure["data"]) == 10
    assert bands[0]["y"] == [95.21, 96.21, 94.79, 93.79]  # 94.5 and 95.5 ± 0.71, there and back
    assert whole_text(folder.folder) == page


def test_the_page_opens_with_the_tuned_comparison(folder: ResultsFolder) -> None:
    (folder.folder / "caution.md").write_text("**Beware.** One thing.\n")
    write_tuned_results(folder, seeds=3)
    page = build_page(folder)
    table, figure, sentences, caution, verdicts = page.opening
    assert isinstance(table, Table)
    assert table.caption.startswith("Should I use it, and for what? FedTilt minus FedAvg with fine-tuning, and minus")
    assert [row[:2] for row in table.rows[:3]] == [
        ["clean data", "mnist"], ["clean data", "fashion-mnist"], ["clean data", "cifar10"],
    ]  # fmt: skip
    assert "mean over 3 other seeds" in table.notes
    assert isinstance(figure, CaptionedFigure)
    first = [trace for trace in figure.figure["data"] if trace["xaxis"] == "x"]  # accuracy, minus fine-tuning
    drawn = {y: x for trace in first for y, x in zip(trace["y"], trace["x"], strict=True)}
    assert len(drawn) == len(table.rows)
    for condition, data, cell, *_ in table.rows:
        position = drawn[f"{condition}, {data}"]  # signed square root
        assert leading_number(cell) == pytest.approx(position * abs(position), abs=0.006)
    assert isinstance(sentences, Text)
    assert sentences.markdown.startswith("- **FedTilt is more accurate than both**")
    assert caution == Text(markdown="**Beware.** One thing.")
    assert isinstance(verdicts, Text)
    markdown = whole_text(folder.folder)
    assert markdown.index("Should I use it") < markdown.index("**Beware.**") < markdown.index("<details>")
    assert markdown.count("<details>") == markdown.count("</details>")
    html = as_html(page, plots=False)
    assert html.index("<strong>Beware.</strong>") < html.index("<details>")
    assert '<details class="chapter"><summary><h2 class="name">Clean data</h2></summary>' in html


def test_notes_are_on_the_page(folder: ResultsFolder) -> None:
    assert "It rained" not in whole_text(folder.folder)
    (folder.folder / "notes.md").write_text("**About these runs.** It rained.\n")
    assert "\n**About these runs.** It rained.\n" in whole_text(folder.folder)
    assert "<strong>About these runs.</strong> It rained." in as_html(build_page(folder), plots=False)


def test_html_is_one_file_without_plotly_too(folder: ResultsFolder) -> None:
    page = as_html(build_page(folder), plots=False)
    assert '<td class="number" data-value="99.0"><strong>99.00 ± 0.71</strong><br>\n98.53 (+0.47)</td>' in page
    assert "Without figures" in page
    assert not re.search(r"(?:src|href)=\"(?!#|https://arxiv)", page)
    full = as_html(build_page(folder), plots=True)
    assert '<figure id="clean-mnist-curves">' in full
    assert full.count("FedAvg,1,") == 1  # as CSV: the line, and not the outline of its band


def test_quick_results_are_marked(folder: ResultsFolder) -> None:
    (folder.folder / "clean.jsonl").unlink()
    experiment = load("flips").quick_version()
    case = kind_of(experiment).cases(experiment, Options(quick=True))[0]
    result = comparison_result(metrics(80.0), metrics(90.0), metrics(95.0), tilts=(0.0, -2.0))
    environment = {"device": "cpu", "torch": "2", "fedtilt": "0"}
    folder.append(
        "flips",
        CaseResult(
            case=case.name, what="", quick=True, seeds=None, settings=case.settings, seconds=1.0, result=result,
            environment=environment,
        ),
    )  # fmt: skip
    page = whole_text(folder.folder)
    assert "Nothing here is a result" in page
    assert "FedTilt (ours, from earlier trials)" in page
    assert "*Not in the paper.*" in page
    write_tuned_results(folder, seeds=1, quick=True)
    page = whole_text(folder.folder)
    assert re.search(r"\| label flips \| digits( \| [+−]\d\.\d\d){4} \|", page)  # one seed has no interval
    assert "Holm’s correction** over" not in page


def test_a_page_without_results(tmp_path: Path) -> None:
    page = whole_text(tmp_path)
    assert "No claim is checked yet" in page
    assert "budgets, Clean data, " in page


def test_the_pages_in_docs_are_up_to_date() -> None:
    page = published_page()
    text, figures = front_page(page)
    run = "run: python -m reproduction page --to docs/reproduction"
    assert (DOCS / "README.md").read_text("utf-8") == text, run
    board = (DOCS.parent / LEADERBOARD).read_text("utf-8")
    assert with_leaderboard(board, page) == board, run
    assert len(board.splitlines()) <= 350
    assert not [figure.name for figure in figures if not up_to_date(figure, DOCS / "figures")], run
    assert {path.stem for path in (DOCS / "figures").glob("*.svg")} == {figure.name for figure in figures}
    assert len(text.splitlines()) <= 300


def test_prose() -> None:
    assert prose("- one\n  more\n- two") == "<ul>\n<li>one\nmore</li>\n<li>two</li>\n</ul>\n"
    assert prose("a < b\n\n- *two*") == "<p>a &lt; b</p>\n<ul>\n<li><em>two</em></li>\n</ul>\n"
    assert prose("<script>1</script>") == "<p>&lt;script&gt;1&lt;/script&gt;</p>\n"


def test_figures_are_drawn_once(tmp_path: Path) -> None:
    line = {"type": "scatter", "x": [1, 2], "y": [3.0, 4.0], "name": "a − b"}
    figure = CaptionedFigure(name="one", caption="c", figure={"data": [line], "layout": {"height": 200}})
    (tmp_path / "old.svg").write_text("<svg/>")
    import shutil

    if not shutil.which("chromium"):
        pytest.skip("no browser: apt-get install chromium")
    assert write_svgs([figure], tmp_path) == ["one"]
    assert write_svgs([figure], tmp_path) == []
    svg = (tmp_path / "one.svg").read_text("utf-8")
    assert svg.startswith("<svg")
    assert up_to_date(figure, tmp_path)
    assert not (tmp_path / "old.svg").exists()
    other = CaptionedFigure(
        name="one", caption="c", figure={"data": [line | {"y": [3.0, 5.0]}], "layout": {"height": 200}}
    )
    assert not up_to_date(other, tmp_path)
