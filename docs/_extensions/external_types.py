"""Links to the types of other projects by a table, because their inventories would need the network."""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PAGES = {  # the start of a type's name → the page; {} is the whole name
    "collections.abc.": "https://docs.python.org/3/library/collections.abc.html#{}",
    "os.": "https://docs.python.org/3/library/os.html#{}",
    "pathlib.": "https://docs.python.org/3/library/pathlib.html#{}",
    "torch.nn.modules.module.Module": "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",
    "torch.nn.Module": "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",
    "torch.nn.parameter.": "https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html",
    "torch.Tensor": "https://docs.pytorch.org/docs/stable/tensors.html",
    "torch.device": "https://docs.pytorch.org/docs/stable/tensor_attributes.html",
    "torch.dtype": "https://docs.pytorch.org/docs/stable/tensor_attributes.html",
    "flwr.": "https://flower.ai/docs/framework/ref-api/flwr.html",
    "pandas.": "https://pandas.pydata.org/docs/reference/api/{}.html",
    "plotly.": "https://plotly.com/python-api-reference/",
}


def _resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    target = node.get("reftarget", "")
    for start, page in PAGES.items():
        if target.startswith(start):
            return nodes.reference("", "", content, internal=False, refuri=page.format(target))
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Resolve the types that no page of the site documents."""
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True}
