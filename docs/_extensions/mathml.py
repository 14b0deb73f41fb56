"""Formulas as MathML, which browsers show without a script, a font or the network."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

_APPLY = "<mo>&ApplyFunction;</mo>"
_SPACE = '<mspace width="0.1667em"></mspace>'


def _mathml(formula: str, *, as_block: bool) -> str:
    """The formula, with TeX's thin space between a function's name and what follows: 'log x', but 'log(x)'."""
    mathml = str(tex2mathml(formula, as_block=as_block))
    return re.sub(rf'{_APPLY}(?!\s*<mo stretchy="false">\()', _APPLY + _SPACE, mathml)


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{_mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer; conf.py chooses it."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True}
