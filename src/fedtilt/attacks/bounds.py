"""Whether the aggregation rules of a run are set to tolerate the attackers of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fedtilt.errors import InputError
from fedtilt.math.aggregate import bad_count
from fedtilt.methods import Method
from fedtilt.methods.run_checks import tolerant_parts

if TYPE_CHECKING:
    from fedtilt.engine.settings import TrainSettings


def check_tolerated(
    methods: Sequence[Method], attackers: Collection[int], clients: int, settings: TrainSettings
) -> tuple[str, ...]:
    """Refuse a rule set for fewer bad clients than attack; name rounds that have more of them by chance.

    Args:
        methods: the methods of the run
        attackers: the clients that attack
        clients: how many there are
        settings: the settings of the run, which select the clients of a round
    """
    notices = []
    share, count = len(attackers) / clients, settings.clients_per_round(clients)
    secret = settings.privacy is not None and settings.privacy.randomness == "secret"
    for m in methods:
        shares = [part.bad_share for part in tolerant_parts(m)]
        if not shares:
            continue
        bad_share = min(shares)
        if share > bad_share + 1e-9:
            raise InputError(
                f"bad_share = {bad_share:g} of method {m.name!r} is less than the {len(attackers)} of {clients} "
                f"clients that attack; use bad_share ≥ {share:.2g}, or fewer attackers"
            )
        tolerated = bad_count(bad_share, count)
        if count < clients and not secret:
            rounds = range(1, settings.rounds + 1)
            more = sum(len(set(settings.selected(r, clients)) & set(attackers)) > tolerated for r in rounds)
            if more:
                notices.append(
                    f"method {m.name!r} tolerates {tolerated} bad of {count} clients in a round, and {more} of "
                    f"{settings.rounds} rounds have more attackers by chance; raise bad_share or participation"
                )
    return tuple(notices)
