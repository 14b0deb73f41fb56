"""Recurrent layers, step by step in operations that batch over jobs; torch's own kernels do not."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM, each (B, H)


def unroll_reason(layer: nn.RNNBase) -> str | None:
    """Why `unroll` does not know this layer, as a clause; None if it does."""
    if type(layer) not in _CELLS or layer.proj_size:
        return "cannot be batched over jobs"
    if layer.dropout and layer.num_layers > 1:
        return "draws the dropout between its layers from torch's generator; use nn.Dropout between single layers"
    return None


def unroll(layer: nn.RNNBase) -> None:
    """Let a copy of a layer compute the same, step by step."""
    layer.__class__ = _UNROLLED[type(layer)]


def _rnn(gates: Tensor, hidden: Tensor, state: State, activation: Callable[[Tensor], Tensor]) -> State:
    return (activation(gates + hidden),)


def _lstm(gates: Tensor, hidden: Tensor, state: State, _: object) -> State:
    entering, forgetting, cell, leaving = (gates + hidden).chunk(4, 1)
    c = forgetting.sigmoid() * state[1] + entering.sigmoid() * cell.tanh()
    return leaving.sigmoid() * c.tanh(), c


def _gru(gates: Tensor, hidden: Tensor, state: State, _: object) -> State:
    # parts of one sum: on a CPU, the sigmoid of a tensor without gaps rounds its last numbers differently
    reset, update, _ = (gates + hidden).chunk(3, 1)
    z, (*_, new), (*_, new_h) = update.sigmoid(), gates.chunk(3, 1), hidden.chunk(3, 1)
    candidate = (new + reset.sigmoid() * new_h).tanh()
    return ((1 - z) * candidate + z * state[0],)


_CELLS: dict[type[nn.RNNBase], Callable[..., State]] = {nn.RNN: _rnn, nn.LSTM: _lstm, nn.GRU: _gru}


class _Unrolled(nn.RNNBase):
    cell: Callable[..., State]

    def forward(self, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
        """As torch's layer: the outputs of all steps, and the last state of every layer and direction."""
        if not isinstance(x, Tensor):
            raise RuntimeError("packed sequences have no fixed shape")
        is_lstm, is_single = self.mode == "LSTM", x.dim() == 2
        x = x.unsqueeze(0 if self.batch_first else 1) if is_single else x
        x = x.transpose(0, 1) if self.batch_first else x  # (T, B, …)
        given = None if hx is None else [h[:, None] if is_single else h for h in (hx if is_lstm else (hx,))]
        directions = 2 if self.bidirectional else 1
        ends: list[State] = []
        for number in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                zero = x.new_zeros(x.shape[1], self.hidden_size)
                start = (zero,) * (1 + is_lstm) if given is None else tuple(h[len(ends)] for h in given)
                suffix = f"_l{number}{'_reverse' * direction}"
                states = self._steps(x.flip(0) if direction else x, start, suffix)
                output = torch.stack([state[0] for state in states])
                outputs.append(output.flip(0) if direction else output)
                ends.append(states[-1])
            x = torch.cat(outputs, 2) if directions > 1 else outputs[0]
        last = [torch.stack(parts) for parts in zip(*ends, strict=True)]
        x = x.transpose(0, 1) if self.batch_first else x
        if is_single:
            x, last = x.squeeze(0 if self.batch_first else 1), [h.squeeze(1) for h in last]
        return x, tuple(last) if is_lstm else last[0]

    def _steps(self, x: Tensor, state: State, suffix: str) -> list[State]:
        """The states after every step of one layer in one direction."""
        weights = {name: getattr(self, name + suffix) for name in ("weight_ih", "weight_hh")}
        biases = {name: getattr(self, name + suffix) if self.bias else None for name in ("bias_ih", "bias_hh")}
        activation = torch.relu if self.mode == "RNN_RELU" else torch.tanh
        gates = F.linear(x, weights["weight_ih"], biases["bias_ih"])  # of all steps at once
        states = []
        for gate in gates.unbind():
            hidden = F.linear(state[0], weights["weight_hh"], biases["bias_hh"])
            state = type(self).cell(gate, hidden, state, activation)
            states.append(state)
        return states


_UNROLLED = {
    kind: type(f"Unrolled{kind.__name__}", (_Unrolled, kind), {"cell": staticmethod(cell)})
    for kind, cell in _CELLS.items()
}
