"""One schema for all sites' tables: the server asks for summaries, merges them, and stores the schema with the run."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedtilt.data import Schema
from fedtilt.data.tables.merge import describe_site, extra_columns, merge, misfits, outliers
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.errors import InputError
from fedtilt.files import first_difference, read_json
from fedtilt.flower.flwr_internals import limit_reply_size
from fedtilt.flower.membership import MissingSitesError, SiteKeys, check_member, connected_nodes, wait_for_nodes
from fedtilt.flower.message_fields import MAX_TEXT, RejectedReply
from fedtilt.flower.messages import SUMMARY_REQUEST, claimed_site, decode_summary_reply
from fedtilt.flower.policy import RoundPolicy

_log = logging.getLogger("flwr")


def agree_on_schema(
    known: Schema, sites: int, grid: Grid, policy: RoundPolicy, site_keys: SiteKeys | None = None,
    left_out: Sequence[int] = (),
) -> Schema:  # fmt: skip
    """The schema of all sites: the `known` one of the project if it is complete, else with what their summaries add.

    A site that sends no summary, or one that fits neither the project's schema nor the other sites, is named in the
    log and skipped, and so is one whose numbers would move those of all too far. Raises if fewer sites remain than the
    policy requires to join. Summaries of sites that are left out are not used.
    """
    if known.is_complete:
        return known
    summaries, skipped = _ask(sites, grid, policy, site_keys, left_out)
    for find in (misfits, outliers):
        while reasons := find([summaries[site] for site in sorted(summaries)], known):
            for name, reason in reasons.items():
                skipped[int(name)] = reason
                del summaries[int(name)]
    for site, reason in sorted(skipped.items()):
        _log.warning("no summary of site %d is used: it %s", site, reason)
    required = max(1, policy.required_to_join(sites - len(left_out)))
    if len(summaries) < required:
        raise MissingSitesError(
            f"{len(summaries)} of {sites} sites agree on a schema and {'all' if required == sites else required} must",
            {site: skipped[site] for site in range(sites) if site not in summaries},
        )
    used = [summaries[site] for site in sorted(summaries)]
    for column, having in extra_columns(used, known).items():
        named = " and ".join(map(describe_site, having))
        _log.warning("column %r of %s is no feature: most sites lack it", column, named)
    schema = merge(used, known)
    _check(schema)
    _log.info(
        "%d of %d sites agree on a schema: %d inputs, %s",
        len(summaries), sites, len(schema.inputs),
        "numbers as targets" if schema.is_regression else f"{len(schema.classes or ())} classes",
    )  # fmt: skip
    return schema


def _ask(
    sites: int, grid: Grid, policy: RoundPolicy, site_keys: SiteKeys | None, left_out: Sequence[int]
) -> tuple[dict[int, SiteSummary], dict[int, str]]:
    """The sites' summaries, and for each other site why there is none."""
    wait_for_nodes(grid, sites - len(left_out), policy.wait)
    connected = connected_nodes(grid)
    too_large: list[int] = []
    limit_reply_size(grid, 4 * MAX_TEXT, too_large.append)  # UTF-8 has at most four bytes per character
    requests = [Message(RecordDict(), dst_node_id=node, message_type=SUMMARY_REQUEST) for node in sorted(connected)]
    replies = grid.send_and_receive(requests, timeout=policy.deadline)
    summaries: dict[int, SiteSummary] = {}
    skipped: dict[int, str] = {}
    for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        node = reply.metadata.src_node_id
        try:
            site, summary = decode_summary_reply(reply, sites=sites, max_samples=policy.max_samples)
            check_member(site, connected.get(node), site_keys, left_out)
        except RejectedReply as reason:
            claimed = claimed_site(reply, sites)
            if claimed is None:
                _log.warning("no summary of node %d is used: it %s", node, reason)
            else:
                skipped.setdefault(claimed, str(reason))
            continue
        if site in summaries:
            skipped[site] = "has more than one node"
        summaries[site] = summary
    for node in too_large:
        _log.warning("no summary of node %d is used: it is too large", node)
    silent = "sent no summary in time" if len(connected) >= sites else "is not connected, or sent no summary in time"
    for site in range(sites):
        if site in skipped:
            summaries.pop(site, None)
        elif site not in summaries:
            skipped[site] = silent
    return summaries, skipped


def _check(schema: Schema) -> None:
    if schema.is_regression and schema.numbers is None:
        raise InputError(f"target = {schema.target!r} has no value at any site; regression needs numbers")
    if not schema.is_regression and len(schema.classes or ()) < 2:
        raise InputError(
            f"target = {schema.target!r} has one class, {', '.join(schema.classes or ())!r}, at all sites together; it "
            "needs two or more"
        )
    if not schema.inputs:
        kinds = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns) or "none"
        raise InputError(f"the sites have no feature column; beside the target their columns are {kinds}")


def stored_schema(seed_folder: Path, known: Schema) -> Schema | None:
    """The schema of the run in a folder, to resume it; None: there is no run. Raises if the project's now differs."""
    path = seed_folder / "fingerprint.json"
    values = read_json(path).get("schema") if path.exists() else None
    if values is None:
        return None
    schema = Schema.from_json(values)
    now = known.to_json()
    difference = first_difference(_with_keys_of(now, schema.to_json()), now)
    if difference:
        key, was, is_now = difference
        raise InputError(
            f"{seed_folder.parent} was started with schema.{key} = {was}, and now it is {is_now}; restore it, or start "
            "a new run in another folder"
        )
    return schema


def _with_keys_of(known: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `values` that `known` has too."""
    return {
        key: _with_keys_of(value, values.get(key, {})) if isinstance(value, Mapping) else values.get(key)
        for key, value in known.items()
    }
