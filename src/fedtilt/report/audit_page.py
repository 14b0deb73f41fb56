"""One HTML page about the audit of a run: suspects with their images or rows, shares of wrong labels, clients."""

import base64
import math
import struct
import zlib
from typing import Any

from torch import Tensor

from fedtilt.auditing.clients import ClientAudit
from fedtilt.auditing.samples import UNKNOWN, Audit, Suspect
from fedtilt.data import Federation
from fedtilt.report import html
from fedtilt.version import __version__

_MAX_SUSPECTS = 200  # on the page; the CSV file has all
_MAX_CLIENTS = 10  # with a confusion of their own
_PIXELS = 64  # the longer side of a thumbnail
_MAX_CELLS = 12  # columns of a row that are shown


def build_audit_page(
    name: str, audit: Audit, clients: ClientAudit, federation: Federation, *, round: int, seed: int, csv: str
) -> str:
    """The page about the run of this name and seed, with models of that round; `csv` is the file with all suspects."""
    suspects = audit.suspects()
    by_client = audit.wrong_labels()
    main = html.render(
        "audit.html.j2",
        name=name,
        facts=f"{len(audit):,} training samples of {len(by_client)} clients, judged by {audit.method} after round "
        f"{round}, seed {seed}",
        found=audit.cut(0.5),
        unknown="" if audit.is_known else UNKNOWN,
        samples=len(audit),
        cuts=audit.cuts(),
        cards=_cards(audit, federation, suspects[:_MAX_SUSPECTS]),
        suspects=len(suspects),
        csv=csv,
        clients=by_client,
        classes=audit.wrong_labels(by_class=True),
        confusions=_confusions(audit, [row.client for row in by_client[:_MAX_CLIENTS] if row.suspects]),
        never_selected=audit.never_selected,
        sentences=clients.sentences(),
        heat_map=_heat_map(clients),
    )
    return html.document(
        title=f"fedtilt: audit of {name}", what="audit", main=main, plots=False,
        footer=f"Written by fedtilt {__version__} from a run folder and its data, without training.",
    )  # fmt: skip


def _cards(audit: Audit, federation: Federation, suspects: list[Suspect]) -> list[dict[str, Any]]:
    """Each suspect with its image as the address of an img element (empty: none), or the cells of its row."""
    order = audit.worst_first[: len(suspects)].tolist()
    samples = [int(federation.train_index[int(audit.client[i])][int(audit.sample[i])]) for i in order]
    from fedtilt.data.tables.reader import original_rows  # late: it imports Arrow

    rows = original_rows(federation.dataset, samples)
    cards = []
    for suspect, sample in zip(suspects, samples, strict=True):
        x = federation.dataset.x_train
        image = png_address(x[sample]) if federation.image and isinstance(x, Tensor) else ""
        cells = list(rows.get(sample, {}).items())[:_MAX_CELLS]
        cards.append({"suspect": suspect, "image": image, "cells": cells})
    return cards


def png_address(image: Tensor) -> str:
    """An image (C, H, W), uint8 or in [0, 1], as a PNG inside an address; large ones are thinned out."""
    step = max(1, math.ceil(max(image.shape[1:]) / _PIXELS))
    pixels = image[:, ::step, ::step]
    pixels = pixels if pixels.dtype.itemsize == 1 else (pixels.clamp(0, 1) * 255).round().byte()
    channels, height, width = pixels.shape
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}.get(channels)  # grey, grey with transparency, colour, and so on
    if colour_type is None:
        pixels, colour_type = pixels[:1], 0
    lines = pixels.permute(1, 2, 0).contiguous().numpy()
    raw = b"".join(b"\0" + line.tobytes() for line in lines)  # filter 0: pixels as they are
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _confusions(audit: Audit, clients: list[str]) -> list[dict[str, Any]]:
    """Suspects by label and the class they look like: of all clients, then of single ones; without empty classes."""
    confusions = []
    for title, client in [("All clients", None), *((f"Client {name}", name) for name in clients)]:
        counts = audit.confusion(client)
        used = ((counts.sum(0) + counts.sum(1)) > 0).nonzero()[:, 0].tolist()
        names, rows = [audit.class_names[k] for k in used], counts[used][:, used].tolist()
        most = max(1, int(counts.max()))
        confusions.append({"title": title, "names": names, "rows": list(zip(names, rows, strict=True)), "most": most})
    return confusions


def _heat_map(clients: ClientAudit) -> dict[str, Any]:
    """Distances of updates by client and round, of the clients that took part; the worst clients first."""
    scores, rows = clients.heat_map(), []
    for row in clients.clients[:40] if len(scores) else []:
        distances = scores[:, clients.client_names.index(row.client)].tolist()
        rows.append((row.client, [None if math.isnan(v) else v for v in distances]))
    return {"rounds": list(range(1, len(scores) + 1)), "rows": rows}
