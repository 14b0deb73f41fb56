"""Which node is which site, the replies of a round by site, and rejection counts by sender and reason."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedtilt.data import Schema
from fedtilt.errors import InputError
from fedtilt.flower.message_fields import RejectedReply
from fedtilt.flower.messages import claimed_site, decode_join_reply, encode_join
from fedtilt.flower.policy import RoundPolicy
from fedtilt.parts import Parts

SiteKeys = Mapping[bytes, int]  # public key → site
Decoded = TypeVar("Decoded")
_MAX_FAILED_JOINS = 3  # then a node is not asked again until it reconnects, with corrected settings


class MissingSitesError(InputError):
    """Too few sites to continue; `sites` are the missing ones."""

    def __init__(self, what: str, reasons: Mapping[int, str], consequence: str = "nothing was trained") -> None:
        listed = "; ".join(f"site {site} {reason}" for site, reason in sorted(reasons.items()))
        super().__init__(f"{what} ({listed}); {consequence}: fix the sites and run it again")
        self.sites = sorted(reasons)


@dataclass
class _Node:
    """What is known of a connected node."""

    identity: tuple[bytes, str]  # see `connected_nodes`
    site: int | None = None  # that it has joined as
    claimed: int | None = None  # the site that it says it is
    problem: str = ""  # why it has not joined
    failed_joins: int = 0  # of its replies to join requests
    is_silent: bool = False  # it is asked without waiting for its reply
    request: str | None = None  # the join request whose reply is not waited for
    unanswered: Counter[str] = field(default_factory=Counter)  # by kind of request, in a row


class Membership:
    """The sites that have joined, and rejection counts by sender and reason.

    A site is skipped while it does not reply: a request that it leaves unanswered costs the deadline of the round. It
    is asked to join once more, without waiting for its reply, and takes part again when that reply arrives.
    To join, a site must have these classes, parts of the model and, if personal models start at "initial", initial
    values; its table must fit the schema, and its node must have its key.
    """

    def __init__(
        self, *, sites: int, classes: int, parts: Parts, policy: RoundPolicy, site_keys: SiteKeys | None = None,
        left_out: Sequence[int] = (), schema: Schema | None = None, personal_start: str = "last",
    ) -> None:  # fmt: skip
        self._sites, self._policy, self._site_keys, self._left_out = sites, policy, site_keys, left_out
        self._decode = partial(
            decode_join_reply, sites=sites, classes=classes, parts=parts, personal_start=personal_start
        )
        self._request = encode_join(schema)
        self._nodes: dict[int, _Node] = {}
        self._dropped: set[int] = set()  # nodes whose reply to the last request was too large
        self._rejections: defaultdict[str, Counter[str]] = defaultdict(Counter)  # sender → reason → count

    # -- rejections --------------------------------------------------------------------------------------------------

    def reject(self, sender: str, reason: str) -> None:
        """Count a rejection."""
        self._rejections[sender][reason] += 1

    def rejections(self) -> dict[str, dict[str, int]]:
        """Rejection counts by sender and reason."""
        return {sender: dict(sorted(reasons.items())) for sender, reasons in sorted(self._rejections.items())}

    def add_rejections(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add the rejection counts of an earlier run."""
        for sender, reasons in counts.items():
            self._rejections[sender].update(reasons)

    def drop_reply(self, node: int) -> None:
        """Note that a node sent a reply that is too large to be read."""
        self._dropped.add(node)

    # -- joining -----------------------------------------------------------------------------------------------------

    def site_of(self, node: int) -> int | None:
        """The site of a node, or None if the node has not joined."""
        return self._nodes[node].site if node in self._nodes else None

    def nodes(self) -> dict[int, int]:
        """The node of each site that has joined."""
        return {node.site: number for number, node in self._nodes.items() if node.site is not None}

    def absence_reason(self, site: int) -> str:
        """Why a site has not joined, as far as it is known."""
        problems = {number: node for number, node in self._nodes.items() if node.problem}
        for node in problems.values():
            if node.claimed == site:
                return node.problem
        for number, node in problems.items():
            if node.claimed is None:
                return f"has not joined; node {number}, which does not give its site number, {node.problem}"
        return "is not connected"

    def wait_and_join(self, grid: Grid) -> None:
        """Wait at most `policy.wait` seconds for all sites, ask them to join, and raise if fewer join than must."""
        wait_for_nodes(grid, self._sites - len(self._left_out), self._policy.wait)
        self.refresh(grid, timeout=self._policy.deadline)
        joined, required = self.nodes(), self._policy.required_to_join(self._sites - len(self._left_out))
        if len(joined) < required:
            must = "all" if required == self._sites else required
            raise MissingSitesError(
                f"{len(joined)} of {self._sites} sites joined and {must} must",
                {site: self.absence_reason(site) for site in range(self._sites) if site not in joined},
            )

    def refresh(self, grid: Grid, *, timeout: float | None = None) -> None:
        """Ask new nodes to join; remove those that are gone, and forget what was known of those that reconnected.

        It waits for replies for `timeout` seconds; None: `policy.wait`.
        """
        known, self._nodes = self._nodes, {}
        for number, identity in sorted(connected_nodes(grid).items()):
            node = known.get(number)
            self._nodes[number] = node if node is not None and node.identity == identity else _Node(identity)
        self._admit_late(grid)
        new = {
            n: node for n, node in self._nodes.items() if node.site is None and node.failed_joins < _MAX_FAILED_JOINS
        }
        now = {n: node for n, node in new.items() if not node.is_silent}
        if later := {n: node for n, node in new.items() if node.is_silent and node.request is None}:
            for node, message in zip(later.values(), grid.push_messages(self._requests(later)), strict=False):
                node.request = message or None  # without an id, it could not be sent
        if now:
            for node in now.values():
                node.is_silent, node.claimed, node.problem = True, None, "did not reply to the join request"
            self.admit(grid.send_and_receive(self._requests(now), timeout=timeout or self._policy.wait))

    def _requests(self, nodes: Iterable[int]) -> list[Message]:
        return [Message(self._request, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]

    def _admit_late(self, grid: Grid) -> None:
        """Admit silent nodes that have replied by now."""
        if requests := [node.request for node in self._nodes.values() if node.request is not None]:
            replies = list(grid.pull_messages(requests))
            answered = {reply.metadata.reply_to_message_id for reply in replies}
            for node in self._nodes.values():
                node.request = None if node.request in answered else node.request
            self.admit(replies)

    def admit(self, replies: Iterable[Message]) -> None:
        """Admit the nodes whose replies match; if two new nodes claim the same site, admit neither."""
        claims: dict[int, list[int]] = {}  # site → nodes
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            node = reply.metadata.src_node_id
            try:
                site = self._decode(reply)
                known = self._nodes.setdefault(node, _Node((b"", "")))  # it may have disconnected since
                check_member(site, known.identity, self._site_keys, self._left_out)
            except RejectedReply as reason:
                self._reject_join(node, claimed_site(reply, self._sites), str(reason))
                continue
            claims.setdefault(site, []).append(node)
        taken = self.nodes()
        for site, nodes in claims.items():
            for node in nodes:
                if site in taken or len(nodes) > 1:
                    self._reject_join(node, site, f"another node is site {site}")
                    self._nodes[node].problem = "cannot join: more than one node claims to be this site"
                else:
                    self._nodes[node] = replace(
                        self._nodes[node], site=site, problem="", failed_joins=0, is_silent=False
                    )

    def _reject_join(self, node: int, site: int | None, reason: str) -> None:
        self.reject(f"node {node}", f"cannot join: {reason}")
        if (known := self._nodes.get(node)) is not None:  # otherwise the SuperLink replies for one that is gone
            known.failed_joins, known.is_silent = known.failed_joins + 1, False
            known.claimed, known.problem = site, f"cannot join: {reason}"

    # -- the replies of a round --------------------------------------------------------------------------------------

    def collect(
        self, kind: str, selected: Iterable[int], requested: Collection[int], replies: Iterable[Message],
        decode: Callable[[Message], Decoded],
    ) -> tuple[dict[int, Decoded], dict[int, str], dict[int, str]]:  # fmt: skip
        """By site: decoded replies, reasons for rejection, and why there is no reply; all but the first are counted.

        `requested` are those of the selected sites that were asked to `kind`: train or evaluate; `decode` is that of
        `decode_replies`.
        """
        by_site: dict[int, list[Message]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            site = self.site_of(node)
            if site is not None and site in requested:
                by_site.setdefault(site, []).append(reply)
            elif site is not None or not reply.has_error():  # an error without a site is the SuperLink's timeout
                self.reject(f"node {node}" if site is None else f"site {site}", "replied without a request")
        accepted, rejected = decode_replies(by_site, decode)
        missing = {site: self._silence_reason(kind, site, requested) for site in selected if site not in by_site}
        for site, text in {**rejected, **missing}.items():
            self.reject(f"site {site}", text)
        self.record_replies(kind, requested, by_site)
        return accepted, rejected, missing

    def _silence_reason(self, kind: str, site: int, requested: Collection[int]) -> str:
        if site not in requested:
            return self.absence_reason(site)
        if self.nodes().get(site) in self._dropped:
            return "sent a reply that is too large"
        return f"did not {'reply' if kind == 'train' else kind} in time"

    def record_replies(self, kind: str, requested: Iterable[int], replied: Collection[int]) -> None:
        """Count the requests that sites leave unanswered; after `policy.max_silent_rounds` in a row, skip a site.

        They are counted by kind: a site that trains and never evaluates is silent too.
        """
        joined = self.nodes()
        self._dropped.clear()
        for site in requested:
            if site not in joined:
                continue
            node = self._nodes[joined[site]]
            node.unanswered[kind] = 0 if site in replied else node.unanswered[kind] + 1
            if node.unanswered[kind] >= self._policy.max_silent_rounds:
                node.site, node.claimed, node.is_silent = None, site, True
                node.problem = f"is skipped until it replies: it was silent in {node.unanswered[kind]} rounds"


def decode_replies(
    replies: Mapping[int, Sequence[Message]], decode: Callable[[Message], Decoded]
) -> tuple[dict[int, Decoded], dict[int, str]]:
    """By sender: decoded replies, and reasons for rejection; a sender that replies twice is rejected.

    `decode` returns a value, or raises `RejectedReply`. The order is that of the senders, not of arrival.
    """
    accepted: dict[int, Decoded] = {}
    rejected: dict[int, str] = {}
    for sender, messages in sorted(replies.items()):
        try:
            if len(messages) > 1:
                raise RejectedReply(f"replied {len(messages)} times")
            accepted[sender] = decode(messages[0])
        except RejectedReply as reason:
            rejected[sender] = str(reason)
    return accepted, rejected


def check_member(
    site: int, node: tuple[bytes, str] | None, site_keys: SiteKeys | None, left_out: Collection[int]
) -> None:
    """Reject a node that claims to be a site whose key it does not have, or that has left the federation.

    Without keys, a node may be any site.
    """
    if site_keys is not None:
        owner = None if node is None else site_keys.get(node[0])
        if owner is None:
            raise RejectedReply("its key belongs to no site; register it with fedtilt deploy register")
        if owner != site:
            raise RejectedReply(f"it claims to be site {site}, and its key is that of site {owner}")
    if site in left_out:
        raise RejectedReply("has left the federation (clients.leave_out)")


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until this number of nodes is connected, at most these seconds."""
    end = time.monotonic() + seconds
    while len(set(grid.get_node_ids())) < count and time.monotonic() < end:
        time.sleep(1)


def connected_nodes(grid: Grid) -> dict[int, tuple[bytes, str]]:
    """Of the connected nodes: the public key, and when the node connected, which differs after it has reconnected."""
    return {node.node_id: (node.public_key, node.last_activated_at) for node in grid.get_nodes()}
