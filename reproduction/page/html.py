"""The reproduction page as one HTML file that opens offline."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from fedtilt.report import html
from fedtilt.report.figure import Figure
from fedtilt.version import __version__
from reproduction.chapter import (
    CaptionedFigure,
    FoldedText,
    Part,
    Table,
    Text,
    format_cell,
    is_numeric,
    leading_number,
    verdicts_by_author,
)
from reproduction.page.build import Page, source

_DENSE_COLUMNS = 6  # a table with more columns is set closer

_templates = Environment(loader=PackageLoader("reproduction.page", "."), autoescape=True, trim_blocks=True)
_markdown = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False})


def _render_text(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return str(html.text(tokens[index].content))  # escapes, and keeps numbers and units on one line


_markdown.add_render_rule("text", _render_text)


def as_html(page: Page, *, plots: bool) -> str:
    """The page as one HTML file; without `plots` it has no figures and plotly is not needed."""
    main = _templates.get_template("page.html").render(
        page=page,
        plots=plots,
        part=partial(_part, plots=plots),
        figure_groups=_figure_groups,
        verdicts_by_author=verdicts_by_author,
        source=source,
        prose=prose,
        inline=_inline,
    )
    return html.document(
        title="fedtilt: the paper, reproduced",
        what="reproduction",
        main=Markup(main),
        footer=f"Written by fedtilt {__version__} from the results of python -m reproduction, without training.",
        plots=plots,
    )


def _figure_groups(parts: Sequence[Part]) -> list[tuple[str, list[Any]]]:
    """Parts in order, adjacent figures together, each group with the CSS class of its grid ("" without figures).

    Figures are in two columns, unless one of them has several panels.
    """
    groups = []
    for is_figure, group in groupby(parts, key=lambda part: isinstance(part, CaptionedFigure)):
        members = list(group)
        wide = any(isinstance(part, CaptionedFigure) and "xaxis2" in part.figure["layout"] for part in members)
        css_class = "grid" if wide or len(members) == 1 else "grid two"
        groups.append((css_class if is_figure else "", members))
    return groups


def _part(part: Part, plots: bool) -> Markup:
    if isinstance(part, Text):
        return prose(part.markdown)
    if isinstance(part, FoldedText):
        body = prose(part.markdown)
        return Markup("<details><summary>{}</summary>{}</details>").format(_inline(part.title), body)
    if isinstance(part, CaptionedFigure):
        return _figure(part) if plots else Markup()
    return _table(part)


def _table(table: Table) -> Markup:
    rows = [[format_cell(cell) for cell in row] for row in table.rows]
    numeric = [is_numeric([row[i] for row in rows]) for i in range(len(table.columns))]
    head = Markup().join(
        html.component("head", title, left=not right) for title, right in zip(table.columns, numeric, strict=True)
    )
    body = [
        Markup("<tr>{}</tr>").format(
            Markup().join(_cell(cell, right) for cell, right in zip(row, numeric, strict=True))
        )
        for row in rows
    ]
    template = _templates.get_template("table.html")
    content = html.component("table", head, Markup().join(body), table.caption)
    return Markup(
        template.render(table=table, content=content, dense=len(table.columns) > _DENSE_COLUMNS, inline=_inline)
    )


def _cell(cell: str, right: bool) -> Markup:
    if right and cell:
        return Markup('<td class="number" data-value="{}">{}</td>').format(leading_number(cell), _inline(cell))
    return Markup('<td><span class="label">{}</span></td>').format(_inline(cell))


def _figure(part: CaptionedFigure) -> Markup:
    rows: list[tuple[Any, ...]] = []
    for trace in part.figure["data"]:
        if "fill" in trace:  # the outline of a band is not data
            continue
        x_values = trace.get("text") if isinstance(trace.get("text"), list) else trace.get("x") or []
        rows += [(trace.get("name", ""), x, y) for x, y in zip(x_values, trace.get("y") or [], strict=False)]
    layout = {"height": 360} | part.figure["layout"]
    figure = Figure(
        name=part.name, title=part.caption, note="", data=part.figure["data"], layout=layout,
        columns=("line", "x", "y"), rows=rows,
    )  # fmt: skip
    return html.figure(figure)


def prose(markdown: str) -> Markup:
    """Markdown paragraphs and lists as HTML.

    >>> prose("One **two**.")
    Markup('<p>One <strong>two</strong>.</p>\\n')
    """
    return Markup(_markdown.render(markdown))


def _inline(markdown: str) -> Markup:
    """One line of Markdown as HTML; <br> is the only tag that is not escaped.

    >>> _inline("a < `b` [c](d)<br>e")
    Markup('a &lt; <code>b</code> <a href="d">c</a><br>\\ne')
    """
    return Markup(_markdown.renderInline(markdown.strip().replace("<br>", "\\\n")))
