"""What `fedtilt data show` prints about a folder of images or in LEAF's layout."""

from pathlib import Path

from rich.text import Text

from fedtilt.cli.console import Console
from fedtilt.data import Dataset, Federation, images, leaf
from fedtilt.data.sources.images import describe_images
from fedtilt.data.sources.leaf_json import is_leaf


def describe_folder(console: Console, source: Path) -> Federation | None:
    """Print what a folder has, and return its federation: its own clients, or all samples as one client.

    None if its images still need a size or channels.
    """
    if is_leaf(source):
        return _federation(leaf(source, name=source.resolve().name))
    lines, uniform = describe_images(source)
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    console.print()
    return _federation(images(source)) if uniform else None


def _federation(data: Dataset) -> Federation:
    return Federation.build(data) if data.client_names else Federation.build(data, clients=1, partition="iid")
