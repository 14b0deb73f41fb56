"""What reads inputs, how many inputs each gets, and the optional modules that it needs."""

from chaos.fuzz.files import image_files, run_folders, tensors
from chaos.fuzz.messages import arguments, replies
from chaos.fuzz.runner import Target
from chaos.fuzz.texts import overrides, schemas, specs, tables

TARGETS: dict[str, tuple[Target, int, tuple[str, ...]]] = {  # with the number of inputs at scale 1
    "specs": (specs, 60_000, ()),
    "overrides": (overrides, 40_000, ()),
    "tables": (tables, 15_000, ()),
    "schemas": (schemas, 30_000, ()),
    "run folders": (run_folders, 1_500, ()),
    "replies": (replies, 15_000, ("flwr", "pytest")),
    "image files": (image_files, 15_000, ()),
    "tensors": (tensors, 40_000, ()),
    "command lines": (arguments, 3_000, ()),
}
