"""The replies of a round by site: each is decoded, or rejected with a reason."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from flwr.app import Message

from fedtilt.flower.membership import Membership
from fedtilt.flower.model_arrays import RejectedReply

Decoded = TypeVar("Decoded")


def collect_replies(
    replies: Iterable[Message], requested: Collection[int], membership: Membership, decode: Callable[[Message], Decoded]
) -> tuple[dict[int, Decoded], dict[int, str]]:
    """Decoded replies by site, and reasons for rejection by site; a site that replies twice is rejected.

    Args:
        replies: what has arrived
        requested: the sites that were asked
        membership: knows the site of each node, and counts the rejections
        decode: decodes one reply, or raises `RejectedReply`
    """
    by_site: dict[int, list[Message]] = {}
    for reply in replies:
        node = reply.metadata.src_node_id
        site = membership.site_of(node)
        if site is not None and site in requested:
            by_site.setdefault(site, []).append(reply)
        elif site is not None or not reply.has_error():  # an error without a site is the SuperLink's timeout
            membership.reject(f"node {node}" if site is None else f"site {site}", "replied without a request")
    accepted: dict[int, Decoded] = {}
    rejected: dict[int, str] = {}
    for site, messages in sorted(by_site.items()):
        try:
            if len(messages) > 1:
                raise RejectedReply(f"replied {len(messages)} times")
            accepted[site] = decode(messages[0])
        except RejectedReply as reason:
            rejected[site] = str(reason)
            membership.reject(f"site {site}", str(reason))
    return accepted, rejected


def missing_replies(
    selected: Iterable[int], requested: Collection[int], replied: Collection[int], membership: Membership
) -> dict[int, str]:
    """Why there is no reply of a site that was selected, by site.

    Args:
        selected: the sites that take part in the round
        requested: those that were asked
        replied: those that sent any reply
        membership: knows why a site is absent or silent, and counts the rejections
    """
    missing = {
        site: membership.silence_reason(site) if site in requested else membership.absence_reason(site)
        for site in selected
        if site not in replied
    }
    for site, reason in missing.items():
        membership.reject(f"site {site}", reason)
    return missing
