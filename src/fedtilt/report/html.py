"""Components of a self-contained HTML page: style, script, plotly.js and data are inside it.

plotly-cartesian.min.js is the bundle that Plotly publishes for such figures (npm: plotly.js-cartesian-dist-min, version
4.1.1, unchanged; MIT licence). A page has it compressed, and page.js unpacks it.

The markup is in templates/, where Jinja escapes every value. HTML is `Markup`, which is not escaped again.
"""

import base64
import zlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from fedtilt.report.figure import Figure
from fedtilt.report.summary import format_difference, format_mean_std
from fedtilt.version import __version__


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedtilt.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"text": text, "mean_std": format_mean_std, "difference": format_difference}
    return environment


def render(template: str, **values: Any) -> Markup:
    """Fill in a template of this package; text is escaped, `Markup` is not."""
    return Markup(_environment().get_template(template).render(values))


def component(name: str, *arguments: Any, **options: Any) -> Markup:
    """A macro of templates/components.html.j2."""
    return Markup(getattr(_environment().get_template("components.html.j2").module, name)(*arguments, **options))


def document(*, title: str, what: str, main: str, footer: str, plots: bool = True) -> str:
    """The whole page: `what` is its kind, `main` its content as HTML; without `plots`, it has no plotly.js."""
    return render(
        "document.html.j2", title=title, what=what, main=Markup(main), footer=footer, version=__version__,
        css=_asset("page.css"), script=_asset("page.js"), plotly=Markup(_packed_plotly()) if plots else "",
    )  # fmt: skip


def _asset(name: str) -> Markup:
    return Markup((resources.files("fedtilt.report") / name).read_text("utf-8"))


def plotly() -> str:
    """The source of plotly.js, safe inside a script element."""
    return _asset("plotly-cartesian.min.js").replace("</script", r"<\/script")


@cache
def _packed_plotly() -> str:
    """plotly.js, compressed, as Base64."""
    return base64.b64encode(zlib.compress(_asset("plotly-cartesian.min.js").encode(), 9)).decode()


def text(content: str) -> Markup:
    """Escaped text in which a number and its unit stay on one line."""
    return escape(content.replace(" %", "\N{NO-BREAK SPACE}%").replace(" points", "\N{NO-BREAK SPACE}points"))


def figure(content: Figure, prefix: str = "") -> Markup:
    """A plot that the script draws just before it scrolls into view; the prefix makes its name unique on the page."""
    return component(
        "figure", key=f"{prefix}{content.name}", title=content.title, note=content.note,
        height=content.layout["height"], selectors=content.selectors,
        wide="xaxis2" in content.layout,  # several panels: a narrow page scrolls instead of squeezing them
        json=inline_json({"data": content.data, "layout": content.layout, "csv": content.csv}),
    )  # fmt: skip


def inline_json(content: Any) -> Markup:
    """JSON that is safe inside a script element."""
    return htmlsafe_json_dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
