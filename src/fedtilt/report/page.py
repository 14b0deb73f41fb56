"""One HTML page about runs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape

from fedtilt.report import html
from fedtilt.report.compare import (
    ACCURACY,
    CLASS_FAIRNESS,
    CLIENT_FAIRNESS,
    MEANINGS,
    METRICS,
    VIEWS,
    Metric,
    Row,
    best_and_tied,
    leading,
    rows,
    views,
    worst_clients,
)
from fedtilt.report.figures import METHODS, Figure, figures
from fedtilt.report.run_reader import Run
from fedtilt.report.style import Style, styles
from fedtilt.report.summary import cautions, facts, failures, headline
from fedtilt.report.tables import Published, csv_text, format_difference, format_mean_std
from fedtilt.version import __version__


def build_page(runs: Sequence[Run], published: Sequence[Published]) -> str:
    """The whole page."""
    drawn = [name for run in runs for name in leading(run, METHODS)]  # these choose their colours first
    look = styles(list(dict.fromkeys(drawn + [name for run in runs for name in run.methods])))
    title = f"fedtilt: {runs[0].name}" if len(runs) == 1 else f"fedtilt: {len(runs)} runs"
    sections = [
        _run(run, known, look, f"run-{i}", len(runs) > 1) for i, (run, known) in enumerate(_pairs(runs, published))
    ]
    return html.document(
        title=title,
        what="report",
        main=f"{_overview(runs, look) if len(runs) > 1 else ''}\n{''.join(sections)}",
        footer=f"Written by fedtilt {__version__} from what the run folder holds; nothing was trained for it.",
    )


def _pairs(runs: Sequence[Run], published: Sequence[Published]) -> list[tuple[Run, Published]]:
    return list(zip(runs, published, strict=True))


# -- sections ----------------------------------------------------------------------------------------------------------


def _overview(runs: Sequence[Run], look: Mapping[str, Style]) -> str:
    """All runs in one table, one row per run and method."""
    columns = (ACCURACY, CLIENT_FAIRNESS, CLASS_FAIRNESS, METRICS[4])
    body = []
    for i, run in enumerate(runs):
        table = rows(run, "evaluated")
        leaders = {m.key: best_and_tied(table, m) for m in columns}
        for method, row in table.items():
            link = f'<td data-value="{i}"><a href="#run-{i}">{html.label(run.name)}</a></td>'
            cells = "".join(_number_cell(row, m, method in leaders[m.key] and len(table) > 1) for m in columns)
            body.append(f"<tr>{link}{_method_cell(method, look)}{cells}</tr>")
    head = html.head("run", True) + html.head("method", True) + "".join(_metric_head(m) for m in columns)
    what = "".join(
        f'<li><a href="#run-{i}">{escape(r.name)}</a>: {html.text(facts(r))}</li>' for i, r in enumerate(runs)
    )
    return f"""<section class="overview"><h1>{len(runs)} runs</h1><ul class="contents">{what}</ul>
<h2>Overview</h2>{html.table(head, body, "Overview of all runs")}
<p class="note">Bold: the best method of a run, and those that tie with it.</p></section>"""


def _run(run: Run, known: Published, look: Mapping[str, Style], key: str, several: bool) -> str:
    level = "h2" if several else "h1"
    drawn = figures(run, dict(look))
    told = "".join(
        f'<p class="{"caution" if text.startswith("Unfinished") else "note"}">{html.text(text)}</p>'
        for text in cautions(run)
    )
    few = len(leading(run, METHODS)) < len(run.methods)
    limited = (
        f'<p class="note">Figures show the {METHODS} most accurate methods of {len(run.methods)}.</p>' if few else ""
    )
    return f"""<article id="{key}">
<{level} class="name">{escape(run.name)}</{level}>
<p class="facts">{html.text(facts(run))}</p>
<div class="finding"><p class="lead">{html.text(headline(run))}</p><p>{html.text(failures(run))}</p>{told}</div>
<section><h3>Comparison</h3>{_comparison(run, known, look, key)}</section>
<section><h3>Learning curves</h3>{limited}<div class="grid three">{_figures(drawn["curves"], key)}</div></section>
<section><h3>Clients</h3><div class="grid two">{_figures(drawn["clients"], key)}</div></section>
<section><h3>Classes inside clients</h3>{_figures(drawn["cells"], key)}</section>
<section><h3>The clients served worst</h3>{_worst(run, look)}</section>
<section><h3>Settings</h3>{_settings(run)}</section>
</article>"""


def _comparison(run: Run, known: Published, look: Mapping[str, Style], key: str) -> str:
    """A table per view; the script shows one at a time, paper and a page without script show all."""
    found = views(run)
    tabs = "".join(
        f'<label><input type="radio" name="{key}-view" value="{key}-{view}"{" checked" if view == "evaluated" else ""}>'
        f"<span>{escape(VIEWS[view][0])}</span></label>"
        for view in found
    )
    out = f'<fieldset class="tabs"><legend class="hidden">Which models</legend>{tabs}</fieldset>'
    for view, table in found.items():
        shown = known if view == "evaluated" else {}
        leaders = {m.key: best_and_tied(table, m) for m in METRICS}
        body = []
        for method, row in table.items():
            bold = {m.key: method in leaders[m.key] and len(table) > 1 for m in METRICS}
            cells = "".join(_number_cell(row, m, bold[m.key], shown.get(method, {}).get(m.key)) for m in METRICS)
            body.append(f"<tr>{_method_cell(method, look)}{cells}</tr>")
        head = html.head("method", True) + "".join(_metric_head(m) for m in METRICS)
        out += f"""<div class="view" id="{key}-{view}"><h4>{escape(VIEWS[view][0])}</h4>
<p class="note">{escape(MEANINGS[view])}</p>{html.table(head, body, VIEWS[view][0])}</div>"""
    spread = "mean ± standard deviation over seeds; " if len(run.compared) > 1 else ""
    beside = "; below, the published number and ours minus it" if known else ""
    return f"""{out}<p class="note">After round {run.round}; {spread}accuracy in %, fairness in points, lower is fairer.
Bold: the best, and what ties with it{beside}. Select a heading to sort.</p>"""


def _worst(run: Run, look: Mapping[str, Style]) -> str:
    methods = leading(run, METHODS)
    served = worst_clients(run, methods)
    seeds = len(run.compared) > 1
    harmed = any(
        s.part.has_outliers is not None and 0 < int(s.part.has_outliers.sum()) < len(s.part.total) for s in served
    )
    personal = [m for m in methods if run.compared[0].counts[m].personal is not None]
    absent = any(part.counts[m].never_selected.any() for part in run.compared for m in personal)
    body = []
    for s in served:
        top = max(s.accuracy.values())
        cells = f"<td>{html.label(s.part.client_names[s.client])}</td>"
        cells += f"<td>{s.part.seed}</td>" if seeds else ""
        cells += f'<td class="number">{s.samples}</td>'
        if harmed:
            cells += f"<td>{'yes' if s.part.has_outliers is not None and s.part.has_outliers[s.client] else 'no'}</td>"
        if absent:
            missed = any(bool(s.part.counts[m].never_selected[s.client]) for m in personal)
            cells += f"<td>{'no' if missed else 'yes'}</td>"
        for value in s.accuracy.values():
            best_here = (
                ' class="number best"'
                if round(value, 1) == round(top, 1) and len(s.accuracy) > 1
                else ' class="number"'
            )
            cells += f'<td{best_here} data-value="{value!r}">{value:.1f}</td>'
        body.append(f"<tr>{cells}</tr>")
    head = html.head("client", True) + (html.head("seed", True) if seeds else "") + html.head("test samples", False)
    head += html.head("outliers", True) if harmed else ""
    head += html.head("took part", True) if absent else ""
    head += "".join(html.head(m, False, swatch=look[m].color) for m in methods)
    count = sum(int((part.total.sum(1) > 0).sum()) for part in run.compared)
    note = (
        f"Accuracy in % on the client’s own test data under every method; {len(served)} of {count:,} clients, taken in "
        "turn from the bottom of every method’s list. Bold: the best for that client."
    )
    return f'{html.table(head, body, "The clients served worst")}<p class="note">{escape(note)}</p>'


def _settings(run: Run) -> str:
    environment = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in run.environment.items())
    seeds = ", ".join(map(str, run.seeds))
    if run.spec is None:
        source, name = json.dumps(run.fingerprint, indent=2), "settings as recorded in fingerprint.json"
        commands = "# started from Python: call fedtilt.run again with the same arguments\n"
        commands += f"fedtilt report {shlex.quote(str(run.folder))}"
    elif run.fingerprint.get("runner") == "flower":
        source, name = run.spec, "spec.toml"
        commands = (
            "# trained on real sites, with their data: give the folder of the project\nfedtilt deploy run PROJECT"
        )
    else:
        source, name = run.spec, "spec.toml"
        again = shlex.quote(f"runs/{run.name}-again")
        commands = f"fedtilt run {shlex.quote(str(run.folder / 'spec.toml'))} --out {again}\nfedtilt report {again}"
    return f"""<div class="grid two"><div><h4>Where it ran</h4><dl><dt>started</dt><dd>{escape(run.started)}</dd>
<dt>seeds</dt><dd>{seeds}</dd>{environment}</dl></div>
<div><h4>Run it again</h4><pre><code>{escape(commands)}</code></pre>
<p class="note">The same versions, device and thread count give the same bits.</p></div></div>
<details><summary>{escape(name)}</summary><pre><code>{escape(source)}</code></pre></details>"""


# -- pieces ------------------------------------------------------------------------------------------------------------


def _metric_head(metric: Metric) -> str:
    return html.head(
        metric.title, False, hint=metric.meaning, first="descending" if metric.higher_is_better else "ascending"
    )


def _method_cell(method: str, look: Mapping[str, Style]) -> str:
    return f'<th scope="row"><i class="swatch" style="background:{look[method].color}"></i>{html.label(method)}</th>'


def _number_cell(row: Row, metric: Metric, bold: bool, published: float | None = None) -> str:
    cell = row[metric.key]
    text = f"{cell.mean:.2f}" + ("" if cell.std is None else f"<small> ± {cell.std:.2f}</small>")
    beside = ""
    if published is not None:
        beside = f'<div class="published">{published:.2f} ({format_difference(cell, published)})</div>'
    side = "number best" if bold else "number"
    return f'<td class="{side}" data-value="{cell.mean!r}" title="{escape(format_mean_std(cell))}">{text}{beside}</td>'


def _figures(drawn: Sequence[Figure], key: str) -> str:
    return "".join(_figure(figure, f"{key}-{figure.name}") for figure in drawn)


def _figure(figure: Figure, key: str) -> str:
    return html.figure(
        key, title=figure.title, note=figure.note, data=figure.data, layout=figure.layout,
        csv=csv_text([figure.columns, *figure.rows]), selectors=figure.selectors,
    )  # fmt: skip
