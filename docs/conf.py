"""The documentation site: `make docs` builds it, without network and with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from fedtilt.version import __version__

project = "fedtilt"
author = "the fedtilt authors"
project_copyright = "the fedtilt authors, Apache-2.0"
release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "command_reference",
    "docstrings",
    "external_types",
    "mathml",
    "reproduction_chapters",
    "repository_links",
    "unlisted_pages",
]
exclude_patterns = ["_build", "_extensions", "**/.ipynb_checkpoints"]
nitpicky = True
nitpick_ignore_regex = [("py:class", r"fedtilt\..*|numpy\.ndarray")]  # types that the reference does not cover

# Markdown
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# Notebooks run when the site is built; a cell that fails is an error.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True

# The reference of the Python interface
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# HTML
html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"fedtilt {release}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static", "../src/fedtilt/report/plotly-cartesian.min.js"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_theme_options = {"navigation_with_keys": True}
