"""Which node is which site, the replies of a round by site, and rejection counts by sender and reason."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
_MAX_REFUSALS = 3  # then a node is not asked again until it reconnects, with corrected settings


class MissingSitesError(InputError):
    """Too few sites to continue; `sites` are the missing ones."""

    def __init__(self, what: str, reasons: Mapping[int, str], consequence: str = "nothing was trained") -> None:
        listed = "; ".join(f"site {site} {reason}" for site, reason in sorted(reasons.items()))
        super().__init__(f"{what} ({listed}); {consequence}: fix the sites and run it again")
        self.sites = sorted(reasons)


class Membership:
    """The sites that have joined, and rejection counts by sender and reason.

    A site is skipped while it does not reply: a request that it leaves unanswered costs the deadline of the round. It
    is asked to join once more, without waiting for its reply, and takes part again when that reply arrives.

    Args:
        sites: the number of sites of the federation
        classes: the number of classes that a site must have to join
        parts: the parts of the model that a site must have to join
        policy: how long to wait for sites, and how many must join
        site_keys: the site of each public key; a node with another key cannot join. None: a node may be any site
        left_out: sites that cannot join, because they have left the federation
        schema: the schema of the sites' tables, which a site's own must fit to join; None: the sites have no tables
        personal_start: where personal models start; at "initial", all initial values of a site must be the server's
    """

    def __init__(
        self, *, sites: int, classes: int, parts: Parts, policy: RoundPolicy, site_keys: SiteKeys | None = None,
        left_out: Sequence[int] = (), schema: Schema | None = None, personal_start: str = "last",
    ) -> None:  # fmt: skip
        self._sites, self._classes, self._parts, self._policy = sites, classes, parts, policy
        self._site_keys, self._schema, self._personal_start = site_keys, schema, personal_start
        self._left_out = left_out
        self._connected: dict[int, tuple[bytes, str]] = {}
        self._site_of: dict[int, int] = {}  # node → site
        self._not_joined: dict[int, tuple[int | None, str]] = {}  # node → the site it claims to be, and the reason
        self._refusals: Counter[int] = Counter()  # by node
        self._silent: set[int] = set()  # nodes that are asked without waiting for their reply
        self._late_replies: dict[str, int] = {}  # message → silent node
        self._unanswered: Counter[tuple[int, str]] = Counter()  # by (site, kind of request), in a row
        self._dropped: set[int] = set()  # nodes whose reply to the last request was too large
        self._rejections: Counter[tuple[str, str]] = Counter()  # by (sender, reason)

    # -- rejections --------------------------------------------------------------------------------------------------

    def reject(self, sender: str, reason: str) -> None:
        """Count a rejection."""
        self._rejections[sender, reason] += 1

    def rejections(self) -> dict[str, dict[str, int]]:
        """Rejection counts by sender and reason."""
        counts: dict[str, dict[str, int]] = {}
        for (sender, reason), count in sorted(self._rejections.items()):
            counts.setdefault(sender, {})[reason] = count
        return counts

    def add_rejections(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add the rejection counts of an earlier run."""
        for sender, reasons in counts.items():
            for reason, count in reasons.items():
                self._rejections[sender, reason] += count

    def drop_reply(self, node: int) -> None:
        """Note that a node sent a reply that is too large to be read."""
        self._dropped.add(node)

    # -- joining -----------------------------------------------------------------------------------------------------

    def site_of(self, node: int) -> int | None:
        """The site of a node, or None if the node has not joined."""
        return self._site_of.get(node)

    def nodes(self) -> dict[int, int]:
        """The node of each site that has joined."""
        return {site: node for node, site in self._site_of.items()}

    def absence_reason(self, site: int) -> str:
        """Why a site has not joined, as far as it is known."""
        for claimed, reason in self._not_joined.values():
            if claimed == site:
                return reason
        for node, (claimed, reason) in self._not_joined.items():
            if claimed is None:
                return f"has not joined; node {node}, which does not give its site number, {reason}"
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

        Args:
            grid: the connection to the nodes
            timeout: seconds to wait for replies; None: `policy.wait`
        """
        connected = connected_nodes(grid)
        for node in [node for node, known in self._connected.items() if connected.get(node) != known]:
            self._forget(node)
        self._connected = connected
        if self._late_replies:
            replies = list(grid.pull_messages(list(self._late_replies)))
            for reply in replies:
                self._late_replies.pop(reply.metadata.reply_to_message_id, None)
            self.admit(replies)
        new = [n for n in sorted(connected) if n not in self._site_of and self._refusals[n] < _MAX_REFUSALS]
        if later := [n for n in new if n in self._silent and n not in self._late_replies.values()]:
            messages = grid.push_messages(self._join_requests(later))  # no id for a message that could not be sent
            self._late_replies |= {message: node for message, node in zip(messages, later, strict=False) if message}
        if now := [n for n in new if n not in self._silent]:
            self._not_joined |= dict.fromkeys(now, (None, "did not reply to the join request"))
            self._silent.update(now)
            self.admit(grid.send_and_receive(self._join_requests(now), timeout=timeout or self._policy.wait))

    def _join_requests(self, nodes: Sequence[int]) -> list[Message]:
        content = encode_join(self._schema)
        return [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]

    def _forget(self, node: int) -> None:
        site = self._site_of.pop(node, None)
        claimed, _ = self._not_joined.pop(node, (None, ""))
        for key in [key for key in self._unanswered if key[0] in (site, claimed)]:
            del self._unanswered[key]
        self._refusals.pop(node, None)
        self._silent.discard(node)
        self._late_replies = {message: n for message, n in self._late_replies.items() if n != node}

    def admit(self, replies: Iterable[Message]) -> None:
        """Admit the nodes whose replies match; if two new nodes claim the same site, admit neither."""
        claims: dict[int, list[int]] = {}  # site → nodes
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            node = reply.metadata.src_node_id
            self._silent.discard(node)
            try:
                site = decode_join_reply(
                    reply, sites=self._sites, classes=self._classes, parts=self._parts,
                    personal_start=self._personal_start,
                )  # fmt: skip
                check_key(self._site_keys, self._connected.get(node), site)
                if site in self._left_out:
                    raise RejectedReply("has left the federation (clients.leave_out)")
            except RejectedReply as reason:
                self._reject(node, claimed_site(reply, self._sites), str(reason))
                continue
            claims.setdefault(site, []).append(node)
        taken = set(self._site_of.values())
        for site, nodes in claims.items():
            if site in taken or len(nodes) > 1:
                for node in nodes:
                    self._reject(node, site, f"another node is site {site}")
                    self._not_joined[node] = site, "cannot join: more than one node claims to be this site"
            else:
                self._not_joined.pop(nodes[0], None)
                self._refusals.pop(nodes[0], None)
                self._site_of[nodes[0]] = site

    def _reject(self, node: int, site: int | None, reason: str) -> None:
        self.reject(f"node {node}", f"cannot join: {reason}")
        self._refusals[node] += 1
        if node in self._not_joined or site is not None:  # not the SuperLink, which replies for a node that is gone
            self._not_joined[node] = site, f"cannot join: {reason}"

    # -- the replies of a round --------------------------------------------------------------------------------------

    def collect(
        self, kind: str, selected: Iterable[int], requested: Collection[int], replies: Iterable[Message],
        decode: Callable[[Message], Decoded],
    ) -> tuple[dict[int, Decoded], dict[int, str], dict[int, str]]:  # fmt: skip
        """By site: decoded replies, reasons for rejection, and why there is no reply; all but the first are counted.

        Args:
            kind: of the requests: train or evaluate
            selected: the sites that take part in the round
            requested: those that were asked
            replies: what has arrived; a site that replies twice is rejected
            decode: decodes one reply, or raises `RejectedReply`
        """
        by_site: dict[int, list[Message]] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            site = self.site_of(node)
            if site is not None and site in requested:
                by_site.setdefault(site, []).append(reply)
            elif site is not None or not reply.has_error():  # an error without a site is the SuperLink's timeout
                self.reject(f"node {node}" if site is None else f"site {site}", "replied without a request")
        accepted: dict[int, Decoded] = {}
        rejected: dict[int, str] = {}
        for site, messages in sorted(by_site.items()):
            try:
                if len(messages) > 1:
                    raise RejectedReply(f"replied {len(messages)} times")
                accepted[site] = decode(messages[0])
            except RejectedReply as reason:
                rejected[site] = str(reason)
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
        nodes = self.nodes()
        self._dropped.clear()
        for site in requested:
            if site in replied:
                del self._unanswered[site, kind]
                continue
            self._unanswered[site, kind] += 1
            rounds = self._unanswered[site, kind]
            if rounds >= self._policy.max_silent_rounds and site in nodes:
                del self._site_of[nodes[site]]
                self._silent.add(nodes[site])
                self._not_joined[nodes[site]] = site, f"is skipped until it replies: it was silent in {rounds} rounds"


def check_key(site_keys: SiteKeys | None, node: tuple[bytes, str] | None, site: int) -> None:
    """Reject a node that claims to be a site whose key it does not have; without keys, a node may be any site."""
    if site_keys is None:
        return
    owner = None if node is None else site_keys.get(node[0])
    if owner is None:
        raise RejectedReply("its key belongs to no site; register it with fedtilt deploy register")
    if owner != site:
        raise RejectedReply(f"it claims to be site {site}, and its key is that of site {owner}")


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until this number of nodes is connected, at most these seconds."""
    end = time.monotonic() + seconds
    while len(set(grid.get_node_ids())) < count and time.monotonic() < end:
        time.sleep(1)


def connected_nodes(grid: Grid) -> dict[int, tuple[bytes, str]]:
    """Of the connected nodes: the public key, and when the node connected, which differs after it has reconnected."""
    return {node.node_id: (node.public_key, node.last_activated_at) for node in grid.get_nodes()}
