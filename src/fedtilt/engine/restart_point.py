"""Where a run goes back to when a node of its cluster dies with models that were only there."""

from fedtilt.cluster.remote_tensor import LostTensorError
from fedtilt.engine.client_states import FederationState, Owner, StoredState
from fedtilt.parts import Tensors

_ROUNDS = 10  # between two restart points, where models stay on the nodes
_MAX_LOSSES = 3  # after one restart point


class RestartPoint:
    """The last state of a federation that this process and its files have in full.

    The rounds since then are trained again, to the same bits: all that is random depends on the numbers of rounds.
    """

    def __init__(self) -> None:
        self._round = 0
        self._server: dict[str, Tensors] = {}
        self._stored: dict[Owner, StoredState] | None = None  # None: no model was on a node
        self._losses = 0

    def save(self, state: FederationState, *, on_nodes: bool) -> None:
        """Make this state the restart point, if one is due.

        Args:
            state: between two rounds
            on_nodes: whether the models of the next round stay on the nodes
        """
        is_due = self._stored is None or state.round >= self._round + _ROUNDS or state.client_states.is_saved
        if on_nodes and not is_due:
            return
        self._stored = state.client_states.save_all() if on_nodes else None
        if state.round > self._round:
            self._losses = 0
        self._round, self._server = state.round, state.server

    def restore(self, state: FederationState) -> str:
        """Go back, and say so; raises `LostTensorError` if that has not helped before."""
        self._losses += 1
        if self._losses > _MAX_LOSSES:
            raise LostTensorError
        if self._stored is not None:
            state.client_states.restore(self._stored)
        state.round, state.server = self._round, self._server
        return f"a node died with models that were only there; the rounds after {self._round} are trained again"
