"""One HTML page that needs nothing but itself: style, script, plotly.js and data are all inside."""

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from fedtilt.errors import InputError
from fedtilt.report.compare import (
    ACCURACY,
    CLASS_FAIRNESS,
    CLIENT_FAIRNESS,
    MEANINGS,
    METRICS,
    VIEWS,
    Metric,
    Row,
    best,
    leading,
    rows,
    views,
    worst_clients,
)
from fedtilt.report.figures import METHODS, Figure, figures
from fedtilt.report.look import Style, styles
from fedtilt.report.read import Run
from fedtilt.report.tables import Published, csv_text, difference, number
from fedtilt.report.words import cautions, facts, failures, headline
from fedtilt.version import __version__

# The page may load nothing from anywhere; plotly makes its PNGs from blobs and data.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(runs: Sequence[Run], published: Sequence[Published]) -> str:
    """The whole page."""
    drawn = [name for run in runs for name in leading(run, METHODS)]  # these choose their colours first
    look = styles(list(dict.fromkeys(drawn + [name for run in runs for name in run.methods])))
    title = f"fedtilt: {runs[0].name}" if len(runs) == 1 else f"fedtilt: {len(runs)} runs"
    sections = [
        _run(run, known, look, f"run-{i}", len(runs) > 1) for i, (run, known) in enumerate(_pairs(runs, published))
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fedtilt {escape(__version__)}">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<header class="bar"><span class="brand">fedtilt</span><span class="what">report</span>
<button type="button" id="theme" aria-pressed="false">Dark</button></header>
<main>
{_overview(runs, look) if len(runs) > 1 else ""}
{"".join(sections)}
</main>
<footer>Written by fedtilt {escape(__version__)} from what the run folder holds; nothing was trained for it.</footer>
<script>{_plotly()}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _pairs(runs: Sequence[Run], published: Sequence[Published]) -> list[tuple[Run, Published]]:
    return list(zip(runs, published, strict=True))


def _asset(name: str) -> str:
    return (resources.files("fedtilt.report") / name).read_text("utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InputError('a report needs plotly; pip install "fedtilt[report]"') from None
    return str(get_plotlyjs()).replace("</script", r"<\/script")


# -- sections ----------------------------------------------------------------------------------------------------------


def _overview(runs: Sequence[Run], look: Mapping[str, Style]) -> str:
    """All runs in one table, one row per run and method."""
    columns = (ACCURACY, CLIENT_FAIRNESS, CLASS_FAIRNESS, METRICS[4])
    body = []
    for i, run in enumerate(runs):
        table = rows(run, "judged")
        leaders = {m.key: best(table, m) for m in columns}
        for method, row in table.items():
            link = f'<td data-value="{i}"><a href="#run-{i}">{_label(run.name)}</a></td>'
            cells = "".join(_number_cell(row, m, method in leaders[m.key] and len(table) > 1) for m in columns)
            body.append(f"<tr>{link}{_method_cell(method, look)}{cells}</tr>")
    head = _head("run", True) + _head("method", True) + "".join(_metric_head(m) for m in columns)
    what = "".join(f'<li><a href="#run-{i}">{escape(r.name)}</a>: {_text(facts(r))}</li>' for i, r in enumerate(runs))
    return f"""<section class="overview"><h1>{len(runs)} runs</h1><ul class="contents">{what}</ul>
<h2>Overview</h2>{_table(head, body, "Overview of all runs")}
<p class="note">Bold: the best method of a run, and those that tie with it.</p></section>"""


def _run(run: Run, known: Published, look: Mapping[str, Style], key: str, several: bool) -> str:
    level = "h2" if several else "h1"
    drawn = figures(run, dict(look))
    told = "".join(
        f'<p class="{"caution" if text.startswith("Unfinished") else "note"}">{_text(text)}</p>'
        for text in cautions(run)
    )
    few = len(leading(run, METHODS)) < len(run.methods)
    limited = (
        f'<p class="note">Figures show the {METHODS} most accurate methods of {len(run.methods)}.</p>' if few else ""
    )
    return f"""<article id="{key}">
<{level} class="name">{escape(run.name)}</{level}>
<p class="facts">{_text(facts(run))}</p>
<div class="finding"><p class="lead">{_text(headline(run))}</p><p>{_text(failures(run))}</p>{told}</div>
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
        f'<label><input type="radio" name="{key}-view" value="{key}-{view}"{" checked" if view == "judged" else ""}>'
        f"<span>{escape(VIEWS[view][0])}</span></label>"
        for view in found
    )
    out = f'<fieldset class="tabs"><legend class="hidden">Which models</legend>{tabs}</fieldset>'
    for view, table in found.items():
        shown = known if view == "judged" else {}
        leaders = {m.key: best(table, m) for m in METRICS}
        body = []
        for method, row in table.items():
            bold = {m.key: method in leaders[m.key] and len(table) > 1 for m in METRICS}
            cells = "".join(_number_cell(row, m, bold[m.key], shown.get(method, {}).get(m.key)) for m in METRICS)
            body.append(f"<tr>{_method_cell(method, look)}{cells}</tr>")
        head = _head("method", True) + "".join(_metric_head(m) for m in METRICS)
        out += f"""<div class="view" id="{key}-{view}"><h4>{escape(VIEWS[view][0])}</h4>
<p class="note">{escape(MEANINGS[view])}</p>{_table(head, body, VIEWS[view][0])}</div>"""
    spread = "mean ± standard deviation over seeds; " if len(run.compared) > 1 else ""
    beside = "; below, the published number and ours minus it" if known else ""
    return f"""{out}<p class="note">After round {run.round}; {spread}accuracy in %, fairness in points, lower is fairer.
Bold: the best, and what ties with it{beside}. Select a heading to sort.</p>"""


def _worst(run: Run, look: Mapping[str, Style]) -> str:
    methods = leading(run, METHODS)
    served = worst_clients(run, methods)
    seeds = len(run.compared) > 1
    harmed = any(s.part.carriers is not None and 0 < int(s.part.carriers.sum()) < len(s.part.total) for s in served)
    personal = [m for m in methods if run.compared[0].counts[m].personal is not None]
    absent = any(part.counts[m].unvisited.any() for part in run.compared for m in personal)
    body = []
    for s in served:
        top = max(s.accuracy.values())
        cells = f"<td>{_label(s.part.client_names[s.client])}</td>"
        cells += f"<td>{s.part.seed}</td>" if seeds else ""
        cells += f'<td class="number">{s.samples}</td>'
        if harmed:
            cells += f"<td>{'yes' if s.part.carriers is not None and s.part.carriers[s.client] else 'no'}</td>"
        if absent:
            missed = any(bool(s.part.counts[m].unvisited[s.client]) for m in personal)
            cells += f"<td>{'no' if missed else 'yes'}</td>"
        for value in s.accuracy.values():
            best_here = (
                ' class="number best"'
                if round(value, 1) == round(top, 1) and len(s.accuracy) > 1
                else ' class="number"'
            )
            cells += f'<td{best_here} data-value="{value!r}">{value:.1f}</td>'
        body.append(f"<tr>{cells}</tr>")
    head = _head("client", True) + (_head("seed", True) if seeds else "") + _head("test samples", False)
    head += _head("outliers", True) if harmed else ""
    head += _head("took part", True) if absent else ""
    head += "".join(_head(m, False, swatch=look[m].color) for m in methods)
    count = sum(int((part.total.sum(1) > 0).sum()) for part in run.compared)
    note = (
        f"Accuracy in % on the client’s own test data under every method; {len(served)} of {count:,} clients, taken in "
        "turn from the bottom of every method’s list. Bold: the best for that client."
    )
    return f'{_table(head, body, "The clients served worst")}<p class="note">{escape(note)}</p>'


def _settings(run: Run) -> str:
    environment = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in run.environment.items())
    seeds = ", ".join(map(str, run.seeds))
    if run.spec is None:
        source, name = json.dumps(run.job, indent=2), "settings as recorded in job.json"
        commands = "# started from Python: call fedtilt.run again with the same arguments\n"
        commands += f"fedtilt report {shlex.quote(str(run.folder))}"
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


def _text(text: str) -> str:
    """Escaped, with numbers and their units kept on one line."""
    return escape(text).replace(" %", "\N{NO-BREAK SPACE}%").replace(" points", "\N{NO-BREAK SPACE}points")


def _label(name: str) -> str:
    """A name in a table: as wide as it is, up to a limit, then on several lines."""
    return f'<span class="label">{escape(name)}</span>'


def _table(head: str, body: Sequence[str], label: str) -> str:
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table class="sortable">
<thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>"""


def _head(title: str, left: bool, *, hint: str = "", first: str = "ascending", swatch: str = "") -> str:
    """A heading that sorts; `first` is the order that its first click gives."""
    mark = f'<i class="swatch" style="background:{swatch}"></i>' if swatch else ""
    side = "" if left else ' class="number"'
    tip = f' title="{escape(hint)}"' if hint else ""
    return f'<th scope="col"{side}><button type="button" data-first="{first}"{tip}>{mark}{_text(title)}</button></th>'


def _metric_head(metric: Metric) -> str:
    return _head(metric.title, False, hint=metric.meaning, first="descending" if metric.more else "ascending")


def _method_cell(method: str, look: Mapping[str, Style]) -> str:
    return f'<th scope="row"><i class="swatch" style="background:{look[method].color}"></i>{_label(method)}</th>'


def _number_cell(row: Row, metric: Metric, bold: bool, published: float | None = None) -> str:
    cell = row[metric.key]
    text = f"{cell.mean:.2f}" + ("" if cell.std is None else f"<small> ± {cell.std:.2f}</small>")
    beside = ""
    if published is not None:
        beside = f'<div class="published">{published:.2f} ({difference(cell, published)})</div>'
    side = "number best" if bold else "number"
    return f'<td class="{side}" data-value="{cell.mean!r}" title="{escape(number(cell))}">{text}{beside}</td>'


def _figures(drawn: Sequence[Figure], key: str) -> str:
    return "".join(_figure(figure, f"{key}-{figure.name}") for figure in drawn)


def _figure(figure: Figure, key: str) -> str:
    content: dict[str, Any] = {
        "data": figure.data,
        "layout": figure.layout,
        "csv": csv_text([figure.columns, *figure.rows]),
    }
    choices = "".join(
        f'<label>{escape(part)} <select data-part="{escape(part)}">'
        + "".join(f"<option>{escape(choice)}</option>" for choice in options)
        + "</select></label>"
        for part, options in figure.selectors.items()
    )
    return f"""<figure id="{key}"><figcaption><h4>{escape(figure.title)}</h4>
<p class="note">{escape(figure.note)}</p></figcaption>{f'<div class="choices">{choices}</div>' if choices else ""}
<div class="plot" role="img" aria-label="{escape(figure.title)}" style="height:{figure.layout["height"]}px"></div>
<div class="downloads"><button type="button" data-download="png" aria-label="{escape(figure.title)} as PNG">PNG</button>
<button type="button" data-download="csv" aria-label="Data of {escape(figure.title)} as CSV">CSV</button></div>
<script type="application/json">{_inline_json(content)}</script></figure>"""


def _inline_json(content: Any) -> str:
    """JSON that cannot end the script it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
