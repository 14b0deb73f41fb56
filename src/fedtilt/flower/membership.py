"""Which node is which site, and rejection counts by sender and reason."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtilt.errors import InputError
from fedtilt.flower.messages import RejectedReply, claimed_site, decode_join_reply
from fedtilt.flower.policy import RoundPolicy

_MAX_JOIN_ATTEMPTS = 3  # a node that cannot join may have been restarted with corrected settings


class MissingSitesError(InputError):
    """Too few sites to continue; `sites` are the missing ones."""

    def __init__(self, message: str, *, sites: Iterable[int]) -> None:
        super().__init__(message)
        self.sites = sorted(sites)


class Membership:
    """The sites that have joined, and rejection counts by sender and reason.

    Args:
        sites: how many sites the federation has
        classes: the number of classes that a site must have to join
        parameters: the number of model parameters that a site must have to join
        policy: how long to wait for sites
    """

    def __init__(self, *, sites: int, classes: int, parameters: int, policy: RoundPolicy) -> None:
        self._sites, self._classes, self._parameters, self._policy = sites, classes, parameters, policy
        self._site_of: dict[int, int] = {}  # node → site
        self._not_joined: dict[int, tuple[int | None, str]] = {}  # node → the site it claims to be, and the reason
        self._join_attempts: Counter[int] = Counter()  # by node
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

    def wait_and_join(self, grid: Grid) -> None:
        """Wait until all sites are connected, at most `policy.wait` seconds, and ask them to join."""
        end = time.monotonic() + self._policy.wait
        while len(set(grid.get_node_ids())) < self._sites and time.monotonic() < end:
            time.sleep(1)
        self.refresh(grid)

    def refresh(self, grid: Grid) -> None:
        """Ask new nodes to join; remove those that are gone."""
        connected = set(grid.get_node_ids())
        self._site_of = {node: site for node, site in self._site_of.items() if node in connected}
        self._not_joined = {node: reason for node, reason in self._not_joined.items() if node in connected}
        new = [
            node
            for node in sorted(connected)
            if node not in self._site_of and self._join_attempts[node] < _MAX_JOIN_ATTEMPTS
        ]
        if not new:
            return
        self._join_attempts.update(new)
        requests = [Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in new]
        self._not_joined |= dict.fromkeys(new, (None, "did not reply to the join request"))
        self.admit(grid.send_and_receive(requests, timeout=self._policy.deadline))

    def admit(self, replies: Iterable[Message]) -> None:
        """Admit the nodes whose replies match; if two new nodes claim the same site, admit neither."""
        claims: dict[int, list[int]] = {}  # site → nodes
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            node = reply.metadata.src_node_id
            try:
                site = decode_join_reply(reply, sites=self._sites, classes=self._classes, parameters=self._parameters)
            except RejectedReply as reason:
                self.reject(f"node {node}", f"cannot join: {reason}")
                if node in self._not_joined:  # not the SuperLink, which replies for a node that is gone
                    self._not_joined[node] = claimed_site(reply, self._sites), f"cannot join: {reason}"
                continue
            claims.setdefault(site, []).append(node)
        taken = set(self._site_of.values())
        for site, nodes in claims.items():
            if site in taken or len(nodes) > 1:
                for node in nodes:
                    self.reject(f"node {node}", f"cannot join: another node is site {site}")
                    self._not_joined[node] = site, "cannot join: more than one node claims to be this site"
            else:
                self._not_joined.pop(nodes[0], None)
                self._site_of[nodes[0]] = site
