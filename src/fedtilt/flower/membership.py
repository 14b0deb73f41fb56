"""Which node is which site, and rejection counts by sender and reason."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtilt.data import Schema
from fedtilt.errors import InputError
from fedtilt.flower.messages import CONFIG_RECORD, claimed_site, decode_join_reply
from fedtilt.flower.model_arrays import RejectedReply
from fedtilt.flower.policy import RoundPolicy
from fedtilt.flower.schema.messages import reject_problem, schema_config
from fedtilt.parts import Parts

SiteKeys = Mapping[bytes, int]  # public key → site
_MAX_REFUSALS = 3  # then a node is not asked again until it reconnects, with corrected settings


class MissingSitesError(InputError):
    """Too few sites to continue; `sites` are the missing ones."""

    def __init__(self, message: str, *, sites: Iterable[int]) -> None:
        super().__init__(message)
        self.sites = sorted(sites)


class Membership:
    """The sites that have joined, and rejection counts by sender and reason.

    A site is left out while it does not reply: a request that it leaves unanswered costs the deadline of the round. It
    is asked to join once more, without waiting for its reply, and takes part again when that reply arrives.

    Args:
        sites: how many sites the federation has
        classes: the number of classes that a site must have to join
        parts: the parts of the model that a site must have to join
        policy: how long to wait for sites
        site_keys: the site of each public key; a node with another key cannot join. None: a node may be any site
        schema: the schema of the sites' tables, which a site's own must fit to join; None: the sites have no tables
        personal_start: where personal models start; at "initial", all initial values of a site must be the server's
    """

    def __init__(
        self,
        *,
        sites: int,
        classes: int,
        parts: Parts,
        policy: RoundPolicy,
        site_keys: SiteKeys | None = None,
        schema: Schema | None = None,
        personal_start: str = "last",
    ) -> None:
        self._sites, self._classes, self._parts, self._policy = sites, classes, parts, policy
        self._site_keys, self._schema, self._personal_start = site_keys, schema, personal_start
        self._connected: dict[int, ConnectedNode] = {}
        self._site_of: dict[int, int] = {}  # node → site
        self._not_joined: dict[int, tuple[int | None, str]] = {}  # node → the site it claims to be, and the reason
        self._refusals: Counter[int] = Counter()  # by node
        self._silent: set[int] = set()  # nodes that are asked without waiting for their reply
        self._late_replies: dict[str, int] = {}  # message → silent node
        self._unanswered: Counter[tuple[int, str]] = Counter()  # by (site, kind of request), in a row
        self._dropped: set[int] = set()  # nodes whose reply to the last request was too large
        self._rejections: Counter[tuple[str, str]] = Counter()  # by (sender, reason)

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

    def drop_reply(self, node: int) -> None:
        """Note that a node sent a reply that is too large to be read."""
        self._dropped.add(node)

    def silence_reason(self, site: int) -> str:
        """Why there is no reply of a site that was asked."""
        return "sent a reply that is too large" if self.nodes().get(site) in self._dropped else "did not reply in time"

    def wait_and_join(self, grid: Grid) -> None:
        """Wait until all sites are connected, at most `policy.wait` seconds, and ask them to join."""
        wait_for_nodes(grid, self._sites, self._policy.wait)
        self.refresh(grid, timeout=self._policy.deadline)

    def require(self, sites: int) -> None:
        """Stop unless so many sites have joined."""
        joined = self.nodes()
        if len(joined) < sites:
            missing = {site: self.absence_reason(site) for site in range(self._sites) if site not in joined}
            raise MissingSitesError(
                f"{len(joined)} of {self._sites} sites joined and {'all' if sites == self._sites else sites} must "
                f"({list_reasons(missing)}); nothing was trained: fix the sites and run it again",
                sites=missing,
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
        self._ask_later([n for n in new if n in self._silent and n not in self._late_replies.values()], grid)
        self._ask([n for n in new if n not in self._silent], grid, timeout or self._policy.wait)

    def _forget(self, node: int) -> None:
        site = self._site_of.pop(node, None)
        claimed, _ = self._not_joined.pop(node, (None, ""))
        for key in [key for key in self._unanswered if key[0] in (site, claimed)]:
            del self._unanswered[key]
        self._refusals.pop(node, None)
        self._silent.discard(node)
        self._late_replies = {message: n for message, n in self._late_replies.items() if n != node}

    def _ask(self, nodes: Sequence[int], grid: Grid, timeout: float) -> None:
        """Ask nodes to join, and wait for their replies; those that do not reply are silent."""
        if nodes:
            self._not_joined |= dict.fromkeys(nodes, (None, "did not reply to the join request"))
            self._silent.update(nodes)
            self.admit(grid.send_and_receive(_join_requests(nodes, self._schema), timeout=timeout))

    def _ask_later(self, nodes: Sequence[int], grid: Grid) -> None:
        """Ask silent nodes to join, and read their replies in a later round."""
        if nodes:
            requests = _join_requests(nodes, self._schema)
            messages = grid.push_messages(requests)  # no id for a message that could not be sent
            self._late_replies |= {message: node for message, node in zip(messages, nodes, strict=False) if message}

    def record_replies(self, kind: str, requested: Iterable[int], replied: Collection[int]) -> None:
        """Count the requests that sites leave unanswered; after `policy.max_silent_rounds` in a row, leave a site out.

        Args:
            kind: of the requests; a site that trains and never evaluates is silent too
            requested: the sites that were asked
            replied: the sites that sent any reply
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
                self._not_joined[nodes[site]] = site, f"is left out until it replies: it was silent in {rounds} rounds"

    def admit(self, replies: Iterable[Message]) -> None:
        """Admit the nodes whose replies match; if two new nodes claim the same site, admit neither."""
        claims: dict[int, list[int]] = {}  # site → nodes
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            node = reply.metadata.src_node_id
            self._silent.discard(node)
            try:
                reject_problem(reply)
                site = decode_join_reply(
                    reply, sites=self._sites, classes=self._classes, parts=self._parts,
                    personal_start=self._personal_start,
                )  # fmt: skip
                check_key(self._site_keys, self._connected.get(node), site)
            except RejectedReply as reason:
                self._refuse(node, claimed_site(reply, self._sites), str(reason))
                continue
            claims.setdefault(site, []).append(node)
        taken = set(self._site_of.values())
        for site, nodes in claims.items():
            if site in taken or len(nodes) > 1:
                for node in nodes:
                    self._refuse(node, site, f"another node is site {site}")
                    self._not_joined[node] = site, "cannot join: more than one node claims to be this site"
            else:
                self._not_joined.pop(nodes[0], None)
                self._refusals.pop(nodes[0], None)
                self._site_of[nodes[0]] = site

    def _refuse(self, node: int, site: int | None, reason: str) -> None:
        self.reject(f"node {node}", f"cannot join: {reason}")
        self._refusals[node] += 1
        if node in self._not_joined or site is not None:  # not the SuperLink, which replies for a node that is gone
            self._not_joined[node] = site, f"cannot join: {reason}"


class ConnectedNode(NamedTuple):
    """What Flower knows about a node that is connected."""

    public_key: bytes
    activated_at: str  # differs after the node has reconnected


def check_key(site_keys: SiteKeys | None, node: ConnectedNode | None, site: int) -> None:
    """Reject a node that claims to be a site whose key it does not have; without keys, a node may be any site."""
    if site_keys is None:
        return
    owner = None if node is None else site_keys.get(node.public_key)
    if owner is None:
        raise RejectedReply("its key belongs to no site; register it with fedtilt deploy register")
    if owner != site:
        raise RejectedReply(f"it claims to be site {site}, and its key is that of site {owner}")


def wait_for_nodes(grid: Grid, count: int, seconds: float) -> None:
    """Wait until so many nodes are connected, at most so many seconds."""
    end = time.monotonic() + seconds
    while len(set(grid.get_node_ids())) < count and time.monotonic() < end:
        time.sleep(1)


def list_reasons(reasons: Mapping[int, str]) -> str:
    """Why sites are missing, in one line."""
    return "; ".join(f"site {site} {reason}" for site, reason in sorted(reasons.items()))


def connected_nodes(grid: Grid) -> dict[int, ConnectedNode]:
    """The connected nodes; a grid without a network knows only their numbers."""
    if not hasattr(grid, "get_nodes"):
        return dict.fromkeys(grid.get_node_ids(), ConnectedNode(b"", ""))
    return {info.node_id: ConnectedNode(info.public_key, info.last_activated_at) for info in grid.get_nodes()}


def _join_requests(nodes: Iterable[int], schema: Schema | None) -> list[Message]:
    config = schema_config(schema)
    content = RecordDict({CONFIG_RECORD: ConfigRecord(config)} if config else {})
    return [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
