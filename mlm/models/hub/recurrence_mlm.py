"""The recurrent layers of mlm in torch.

Letters in array names: B examples, L tokens, D width, H units, G entries of all gates, N entries of a state.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .layers_mlm import Dense, ResidualLayer, find_entry

NUM_GATES = {"elman": 1, "gru": 3, "lstm": 4}


def accumulate(decay_BxLxN, update_BxLxN, same_BxL):
    """The states h_t = decay_t * h_(t-1) + update_t, from zero in each segment; N stands for all further axes."""
    same_BxLxN = same_BxL.reshape(*same_BxL.shape, *[1] * (decay_BxLxN.dim() - 2))
    states = [torch.zeros_like(update_BxLxN[:, 0])]
    for decay_BxN, update_BxN in zip((decay_BxLxN * same_BxLxN).unbind(1), update_BxLxN.unbind(1), strict=True):
        states.append(decay_BxN * states[-1] + update_BxN)
    return torch.stack(states[1:], 1)


class MinGRU(nn.Module):
    """Gates that read the input alone (Feng et al. 2024)."""

    def __init__(self, model):
        super().__init__()
        self.input = Dense(model.width, 2 * model.rnn_dim, model.bias == "all")

    def forward(self, y_BxLxD, same_BxL):
        z, new = self.input(y_BxLxD).chunk(2, -1)
        return accumulate((-z).sigmoid(), z.sigmoid() * new, same_BxL)


class MinLSTM(nn.Module):
    """Two such gates, divided by their sum (Feng et al. 2024)."""

    def __init__(self, model):
        super().__init__()
        self.input = Dense(model.width, 3 * model.rnn_dim, model.bias == "all")

    def forward(self, y_BxLxD, same_BxL):
        f, i, new = self.input(y_BxLxD).chunk(3, -1)
        ratio = F.logsigmoid(f) - F.logsigmoid(i)
        return accumulate(ratio.sigmoid(), (-ratio).sigmoid() * new, same_BxL)


class ShortConv(nn.Module):
    """A causal convolution of each channel over the last four tokens of its segment."""

    def __init__(self, model, channels):
        super().__init__()
        self.taps = nn.Parameter(torch.empty(4, channels))
        self.bias = nn.Parameter(torch.empty(channels)) if model.bias == "all" else None

    def forward(self, x_BxLxC, same_BxL):
        out_BxLxC = x_BxLxC * self.taps[3]
        for tap_C in (self.taps[2], self.taps[1], self.taps[0]):
            x_BxLxC = F.pad(x_BxLxC[:, :-1], (0, 0, 1, 0)) * same_BxL[..., None]
            out_BxLxC = out_BxLxC + x_BxLxC * tap_C
        return out_BxLxC if self.bias is None else out_BxLxC + self.bias


class RGLRU(nn.Module):
    """Griffin's recurrent block (De et al. 2024)."""

    def __init__(self, model):
        super().__init__()
        self.input = Dense(model.width, 2 * model.rnn_dim, model.bias == "all")
        self.conv, self.decay = ShortConv(model, model.rnn_dim), nn.Parameter(torch.empty(model.rnn_dim))
        self.gates = Dense(model.rnn_dim, 2 * model.rnn_dim, model.bias == "all")

    def forward(self, y_BxLxD, same_BxL):
        branch, x = self.input(y_BxLxD).chunk(2, -1)
        x = self.conv(x, same_BxL)
        r, i = self.gates(x).sigmoid().chunk(2, -1)
        decay = (8 * r * F.logsigmoid(self.decay)).exp() * same_BxL[..., None]
        return F.gelu(branch, approximate="tanh") * accumulate(decay, (1 - decay**2).sqrt() * i * x, same_BxL)


class SSD(nn.Module):
    """Mamba-2's block (Dao & Gu 2024), a token after the other; h heads of P units whose states have N entries."""

    def __init__(self, model):
        super().__init__()
        self.sizes = H, N, h = model.rnn_dim, model.state_dim, model.rnn_dim // math.gcd(model.rnn_dim, 64)
        self.input, self.conv = Dense(model.width, 2 * (H + N) + h, False), ShortConv(model, H + 2 * N)
        self.step_bias, self.log_rate, self.skip = (nn.Parameter(torch.empty(h)) for _ in range(3))
        self.norm = nn.ParameterDict({"scale": torch.empty(H)})
        self.eps = model.norm_eps

    def forward(self, y_BxLxD, same_BxL):
        H, N, h = self.sizes
        gate, x, dt_BxLxh = self.input(y_BxLxD).split([H, H + 2 * N, h], -1)
        x, b_BxLxN, c_BxLxN = F.silu(self.conv(x, same_BxL)).split([H, N, N], -1)
        dt_BxLxh, x_BxLxhxP = F.softplus(dt_BxLxh + self.step_bias), x.unflatten(-1, (h, -1))
        decay_BxLxhx1x1 = (-self.log_rate.exp() * dt_BxLxh).exp()[..., None, None]
        update_BxLxhxPxN = torch.einsum("blh,blhp,bln->blhpn", dt_BxLxh, x_BxLxhxP, b_BxLxN)
        state_BxLxhxPxN = accumulate(decay_BxLxhx1x1, update_BxLxhxPxN, same_BxL)
        out_BxLxhxP = torch.einsum("blhpn,bln->blhp", state_BxLxhxPxN, c_BxLxN) + self.skip[:, None] * x_BxLxhxP
        return F.rms_norm(out_BxLxhxP.flatten(2) * F.silu(gate), (H,), self.norm["scale"], self.eps)


PARALLEL_CELLS = {"mingru": MinGRU, "minlstm": MinLSTM, "rglru": RGLRU, "ssd": SSD}


class RecurrentLayer(ResidualLayer):
    """A recurrence in one direction, or both, between a dense layer and another."""

    def __init__(self, model):
        super().__init__(model, "")
        self.directions = ("forward", "backward")[: 1 if model.directionality == "causal" else 2]
        self.out = Dense(len(self.directions) * model.rnn_dim, model.width, model.bias == "all")
        cell = find_entry(PARALLEL_CELLS | NUM_GATES, model, "cell", "recurrence_mlm.py")
        if model.cell in PARALLEL_CELLS:
            for name in self.directions:
                self.add_module(f"{name}_cell", cell(model))
            return
        gate_dim = cell * model.rnn_dim
        for name in self.directions:
            self.add_module(f"{name}_input", Dense(model.width, gate_dim, model.bias == "all"))
            self.register_parameter(f"{name}_kernel", nn.Parameter(torch.empty(model.rnn_dim, gate_dim)))
            if model.cell == "gru" and model.bias == "all":
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(gate_dim)))

    def forward(self, x_BxLxD, number, segments_BxL, is_left_only):
        def recur(y_BxLxD):
            h_BxLxH = [self.scan(y_BxLxD, segments_BxL, "forward")]
            if "backward" in self.directions:
                backward_BxLxH = self.scan(y_BxLxD.flip(1), segments_BxL.flip(1), "backward").flip(1)
                h_BxLxH.append(backward_BxLxH * (not is_left_only))
            return self.out(torch.cat(h_BxLxH, -1))

        return self.add("", recur, x_BxLxD, number == 1 and not self.model.first_norm)

    def scan(self, y_BxLxD, segments_BxL, name):
        """The states of a direction, which start from zero in each segment."""
        same_BxL = F.pad(segments_BxL[:, 1:] == segments_BxL[:, :-1], (1, 0))
        if self.model.cell in PARALLEL_CELLS:
            return getattr(self, f"{name}_cell")(y_BxLxD, same_BxL)
        kernel, bias = getattr(self, f"{name}_kernel"), getattr(self, f"{name}_bias", 0)
        inputs_BxLxG = getattr(self, f"{name}_input")(y_BxLxD)
        h_BxH = c_BxH = inputs_BxLxG.new_zeros(len(y_BxLxD), self.model.rnn_dim)
        states = []
        for input_BxG, same_Bx1 in zip(inputs_BxLxG.unbind(1), same_BxL[..., None].unbind(1), strict=True):
            h_BxH, c_BxH = h_BxH * same_Bx1, c_BxH * same_Bx1
            h_BxH, c_BxH = step_cell(self.model.cell, input_BxG, h_BxH @ kernel + bias, h_BxH, c_BxH)
            states.append(h_BxH)
        return torch.stack(states, 1)


def step_cell(cell, input_BxG, recurrent_BxG, h_BxH, c_BxH):
    """The next state and, of an LSTM, the next cell state."""
    if cell == "elman":
        return (input_BxG + recurrent_BxG).tanh(), c_BxH
    if cell == "gru":
        (input_r, input_z, input_n), (r, z, n) = input_BxG.chunk(3, -1), recurrent_BxG.chunk(3, -1)
        r, z = (input_r + r).sigmoid(), (input_z + z).sigmoid()
        return (1 - z) * (input_n + r * n).tanh() + z * h_BxH, c_BxH
    i, f, g, o = (input_BxG + recurrent_BxG).chunk(4, -1)
    c_BxH = (f + 1).sigmoid() * c_BxH + i.sigmoid() * g.tanh()
    return o.sigmoid() * c_BxH.tanh(), c_BxH
