"""Who is there: which node speaks for which site, and what was refused of whom."""

import time
from collections import Counter
from collections.abc import Iterable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtilt.errors import InputError
from fedtilt.flower.messages import Refused, claimed, hear_joined
from fedtilt.flower.policy import Rules

_TRIES = 3  # a node that cannot join is asked again this often: it may have been restarted with a better setting


class Missing(InputError):
    """Too few sites to go on; `sites` are those that are missing."""

    def __init__(self, sentence: str, *, sites: Iterable[int]) -> None:
        super().__init__(sentence)
        self.sites = sorted(sites)


class Roster:
    """The sites that have joined."""

    def __init__(self, *, sites: int, classes: int, parameters: int, rules: Rules) -> None:
        self._sites, self._classes, self._parameters, self._rules = sites, classes, parameters, rules
        self._site_of: dict[int, int] = {}  # node → site
        self._away: dict[int, tuple[int | None, str]] = {}  # node → the site it says it is, and why it has not joined
        self._asked: Counter[int] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # (who, why)

    def refuse(self, who: str, why: str) -> None:
        """Count something that was not used."""
        self.refused[who, why] += 1

    def refusals(self) -> dict[str, dict[str, int]]:
        """How often what was refused of whom."""
        found: dict[str, dict[str, int]] = {}
        for (who, why), count in sorted(self.refused.items()):
            found.setdefault(who, {})[why] = count
        return found

    def site(self, node: int) -> int | None:
        """The site a node speaks for."""
        return self._site_of.get(node)

    def nodes(self) -> dict[int, int]:
        """The node that speaks for each site."""
        return {site: node for node, site in self._site_of.items()}

    def absence(self, site: int) -> str:
        """Why a site has not joined, as far as it is known."""
        for said, why in self._away.values():
            if said == site:
                return why
        for node, (said, why) in self._away.items():
            if said is None:
                return f"has not joined, and node {node}, which does not say who it is, {why}"
        return "is not connected"

    def gather(self, grid: Grid) -> None:
        """Wait until all sites are connected, but no longer than the rules say, and ask them to join."""
        until = time.monotonic() + self._rules.wait
        while len(set(grid.get_node_ids())) < self._sites and time.monotonic() < until:
            time.sleep(1)
        self.update(grid)

    def update(self, grid: Grid) -> None:
        """Ask the nodes that are new to join; forget those that are gone."""
        present = set(grid.get_node_ids())
        self._site_of = {node: site for node, site in self._site_of.items() if node in present}
        self._away = {node: why for node, why in self._away.items() if node in present}
        unknown = [n for n in sorted(present) if n not in self._site_of and self._asked[n] < _TRIES]
        if not unknown:
            return
        self._asked.update(unknown)
        questions = [Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in unknown]
        self._away |= dict.fromkeys(unknown, (None, "did not answer when it was asked to join"))
        self.admit(grid.send_and_receive(questions, timeout=self._rules.deadline))

    def admit(self, replies: Iterable[Message]) -> None:
        """Let those join whose answers fit; of two nodes that claim the same site, neither is believed."""
        claims: dict[int, list[int]] = {}
        for reply in sorted(replies, key=lambda r: r.metadata.src_node_id):
            node = reply.metadata.src_node_id
            try:
                site = hear_joined(reply, sites=self._sites, classes=self._classes, parameters=self._parameters)
            except Refused as why:
                self.refuse(f"node {node}", f"cannot join: {why}")
                if node in self._away:  # not the SuperLink, which answers for a node that is gone
                    self._away[node] = claimed(reply, self._sites), f"cannot join: {why}"
                continue
            claims.setdefault(site, []).append(node)
        taken = set(self._site_of.values())
        for site, nodes in claims.items():
            if site in taken or len(nodes) > 1:
                for node in nodes:
                    self.refuse(f"node {node}", f"cannot join: another node is site {site}")
                    self._away[node] = site, "cannot join: more than one node says that it is this site"
            else:
                self._away.pop(nodes[0], None)
                self._site_of[nodes[0]] = site
