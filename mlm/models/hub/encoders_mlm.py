"""The encoders of mlm in torch, and the layers that they are made of.

Of the layers of a stack each parameter holds all, along the first axis.

Letters in array names: B examples, L tokens, D width, H heads of d entries, G entries of all gates.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "geglu": lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}
NUM_GATES = {"elman": 1, "gru": 3, "lstm": 4}
NUM_BUCKETS = 32  # of relative positions, half of them on each side
MAX_DISTANCE = 128  # tokens that are further apart share the last bucket


class Dense(nn.Module):
    """A dense layer."""

    def __init__(self, inputs, outputs, bias):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x):
        return F.linear(x, self.kernel.T, self.bias)


class Norm(nn.Module):
    """LayerNorm or RMSNorm, as model.norm says."""

    def __init__(self, model, width):
        super().__init__()
        self.is_rms, self.eps = model.norm == "rmsnorm", model.norm_eps
        self.scale = nn.Parameter(torch.empty(width))
        has_bias = not self.is_rms and model.bias in ("all", "norms")
        self.bias = nn.Parameter(torch.empty(width)) if has_bias else None

    def forward(self, x):
        if self.is_rms:
            return F.rms_norm(x, self.scale.shape, self.scale, self.eps)
        return F.layer_norm(x, self.scale.shape, self.scale, self.bias, self.eps)


class MLP(nn.Module):
    """Two dense layers with model.activation between them; a gated one reads two halves."""

    def __init__(self, model):
        super().__init__()
        self.activation = ACTIVATIONS[model.activation]
        num_halves = 2 if model.activation in ("geglu", "swiglu") else 1
        self.up = Dense(model.width, num_halves * model.mlp_dim, model.bias == "all")
        self.down = Dense(model.mlp_dim, model.width, model.bias == "all")

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class ResidualLayer(nn.Module):
    """A layer whose sublayers stand between norms and residual connections, as model.norm_placement says."""

    def __init__(self, model, *prefixes):
        super().__init__()
        self.model = model
        for prefix in prefixes:
            self.add_module(f"{prefix}norm", Norm(model, model.width))
            if model.norm_placement == "sandwich":
                self.add_module(f"{prefix}post_norm", Norm(model, model.width))
            if model.layer_scale:
                self.add_module(f"{prefix}layer_scale", nn.ParameterDict({"scale": torch.empty(model.width)}))

    def add(self, prefix, sublayer, x, skip_norm=False):
        """x plus what the sublayer makes of it."""
        norm, is_post = getattr(self, f"{prefix}norm"), self.model.norm_placement == "post"
        y = sublayer(x if is_post or skip_norm else norm(x))
        if self.model.norm_placement == "sandwich":
            y = getattr(self, f"{prefix}post_norm")(y)
        if self.model.layer_scale:
            y = y * getattr(self, f"{prefix}layer_scale")["scale"]
        x = x + F.dropout(y, self.model.dropout, self.training)
        return norm(x) if is_post else x


class AttentionBlock(nn.Module):
    """What attention to a text itself and to a source share: norms of queries and keys, gates, and the output layer."""

    def __init__(self, model):
        super().__init__()
        self.model, has_bias = model, model.bias == "all"
        self.out = Dense(model.width, model.width, has_bias)
        if model.qk_norm:
            head_dim = model.width // model.num_heads
            self.q_norm, self.k_norm = Norm(model, head_dim), Norm(model, head_dim)
        if model.attention_gate:
            self.gate = Dense(model.width, model.num_heads, has_bias)

    def split_heads(self, x_BxLxE, num_parts):
        """The heads of each part of the last axis, BxLxHxd."""
        return x_BxLxE.unflatten(-1, (num_parts, self.model.num_heads, -1)).unbind(2)

    def normalize(self, q, k):
        """The queries and keys after model.qk_norm."""
        return (self.q_norm(q), self.k_norm(k)) if self.model.qk_norm else (q, k)

    def mix(self, x_BxLxD, q, k, v, mask_BxHxLxS):
        """The output for the queries of x_BxLxD."""
        q, k, v = (x_BxLxHxd.transpose(1, 2) for x_BxLxHxd in (q, k, v))
        dropout = self.model.attention_dropout if self.training else 0.0
        out_BxHxLxd = F.scaled_dot_product_attention(q, k, v, mask_BxHxLxS, dropout)
        out_BxLxHxd = out_BxHxLxd.transpose(1, 2)
        if self.model.attention_gate:
            out_BxLxHxd = out_BxLxHxd * self.gate(x_BxLxD).sigmoid()[..., None]
        return self.out(out_BxLxHxd.flatten(2))


class Attention(AttentionBlock):
    """Multi-head self-attention."""

    def __init__(self, model):
        super().__init__(model)
        self.qkv = Dense(model.width, 3 * model.width, model.bias == "all")

    def forward(self, x_BxLxD, mask_BxHxLxL, rope_theta):
        q, k, v = self.split_heads(self.qkv(x_BxLxD), 3)
        q, k = self.normalize(q, k)
        if self.model.positions == "rotary":
            q, k = rotate(q, rope_theta), rotate(k, rope_theta)
        return self.mix(x_BxLxD, q, k, v, mask_BxHxLxL)


def rotate(x_BxLxHxd, theta):
    """Rotary position embeddings (Su et al. 2021)."""
    half = x_BxLxHxd.shape[-1] // 2
    place_L = torch.arange(x_BxLxHxd.shape[1], device=x_BxLxHxd.device)
    angle_Lx1xh = place_L[:, None, None] / theta ** (torch.arange(half, device=x_BxLxHxd.device) / half)
    sin, cos = angle_Lx1xh.sin().to(x_BxLxHxd.dtype), angle_Lx1xh.cos().to(x_BxLxHxd.dtype)
    first, second = x_BxLxHxd.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def compute_alibi(num_heads, distance_LxL):
    """bias_HxLxL of attention with linear biases (Press et al. 2022), the same on both sides."""
    n = 2 ** int(math.log2(num_heads))
    powers = [-8 / n * i for i in range(1, n + 1)] + [-4 / n * i for i in range(1, 2 * n, 2)]
    slope_H = torch.tensor([2.0**power for power in powers[:num_heads]], device=distance_LxL.device)
    return -slope_H[:, None, None] * distance_LxL.abs()


def compute_buckets(distance_LxL):
    """The number of the bucket of each distance (T5, Raffel et al. 2020)."""
    side, exact = NUM_BUCKETS // 2, NUM_BUCKETS // 4
    size_LxL, scale = distance_LxL.abs(), (side - exact) / math.log(MAX_DISTANCE / exact)
    log_LxL = exact + ((size_LxL.clamp(min=exact) / exact).log() * scale).long()
    bucket_LxL = torch.where(size_LxL < exact, size_LxL, log_LxL.clamp(max=side - 1))
    return bucket_LxL + side * (distance_LxL > 0)


class TransformerLayer(ResidualLayer):
    """Attention and an MLP."""

    def __init__(self, model, *prefixes):
        super().__init__(model, "attention_", "mlp_", *prefixes)
        self.attention, self.mlp = Attention(model), MLP(model)

    def forward(self, x_BxLxD, number, global_mask, local_mask):
        return self.add("mlp_", self.mlp, self.attend_to_self(x_BxLxD, number, global_mask, local_mask))

    def attend_to_self(self, x_BxLxD, number, global_mask, local_mask):
        """x_BxLxD plus what attention makes of it in layer `number`."""
        model, is_local, theta = self.model, self.is_local(number), self.model.rope_theta
        if is_local and model.local_rope_theta:
            theta = model.local_rope_theta
        attend = lambda x_BxLxD: self.attention(x_BxLxD, local_mask if is_local else global_mask, theta)
        return self.add("attention_", attend, x_BxLxD, number == 1 and not model.first_norm)

    def is_local(self, number):
        """Whether layer `number` sees the nearest tokens alone."""
        if not self.model.local_window:
            return False
        if self.model.global_layers:
            return number not in self.model.global_layers
        return not self.model.global_every or (number - 1) % self.model.global_every != 0


class RecurrentLayer(ResidualLayer):
    """A recurrence in one direction, or both, between a dense layer and another."""

    def __init__(self, model):
        super().__init__(model, "")
        self.directions = ("forward", "backward")[: 1 if model.directionality == "causal" else 2]
        gate_dim = NUM_GATES[model.cell] * model.rnn_dim
        for name in self.directions:
            self.add_module(f"{name}_input", Dense(model.width, gate_dim, model.bias == "all"))
            self.register_parameter(f"{name}_kernel", nn.Parameter(torch.empty(model.rnn_dim, gate_dim)))
            if model.cell == "gru" and model.bias == "all":
                self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(gate_dim)))
        self.out = Dense(len(self.directions) * model.rnn_dim, model.width, model.bias == "all")

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
        kernel, bias = getattr(self, f"{name}_kernel"), getattr(self, f"{name}_bias", 0)
        inputs_BxLxG = getattr(self, f"{name}_input")(y_BxLxD)
        same_BxL = F.pad(segments_BxL[:, 1:] == segments_BxL[:, :-1], (1, 0))
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


class FeedforwardLayer(ResidualLayer):
    """An MLP."""

    def __init__(self, model):
        super().__init__(model, "")
        self.mlp = MLP(model)

    def forward(self, x_BxLxD, number):
        return self.add("", self.mlp, x_BxLxD)


LAYERS = {"transformer": TransformerLayer, "rnn": RecurrentLayer, "feedforward": FeedforwardLayer}


class Stack(nn.Module):
    """The layers of an encoder; each parameter holds those of all layers."""

    def __init__(self, model, layer):
        super().__init__()
        self.num_layers, self.gradient_checkpointing = model.num_layers, False
        for module in layer.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.new_empty(model.num_layers, *parameter.shape)))
        self.layers = nn.ModuleDict({"layer": layer})

    def forward(self, x_BxLxD, *shared):
        """The states below the first layer and above each one."""
        layer, states = self.layers["layer"], [x_BxLxD]
        unstacked = {name: parameter.unbind() for name, parameter in layer.named_parameters()}

        def run_layer(k, x_BxLxD, *shared):
            parameters = {name: parts[k] for name, parts in unstacked.items()}
            return functional_call(layer, parameters, (x_BxLxD, k + 1, *shared))

        if self.gradient_checkpointing and self.training:
            run_layer = partial(self._gradient_checkpointing_func, run_layer)  # which transformers sets
        for k in range(self.num_layers):
            states.append(run_layer(k, states[-1], *shared))
        return states


class Encoder(nn.Module):
    """A stack of layers, what it reads beside its input, and the last norm."""

    def __init__(self, model, layer=None):
        super().__init__()
        self.model, self.stack = model, Stack(model, (layer or LAYERS[model.family])(model))
        if model.norm_placement != "post":
            self.norm = Norm(model, model.width)
        if model.positions == "relative":
            self.relative_bias = nn.Parameter(torch.empty(NUM_BUCKETS, model.num_heads))
        if model.family == "feedforward":
            num_neighbors = 1 if model.cell == "bag" else len(self.list_neighbors())
            self.context = Dense(num_neighbors * model.width, model.width, model.bias == "all")

    def forward(self, x_BxLxD, segments_BxL, is_left_only):
        """The states below the first layer and above each one; segments_BxL: 0 on padding."""
        if self.model.family == "transformer":
            states = self.stack(x_BxLxD, *self.make_masks(segments_BxL, is_left_only))
        elif self.model.family == "rnn":
            states = self.stack(x_BxLxD, segments_BxL, is_left_only)
        else:
            states = self.stack(self.mix_neighbors(x_BxLxD, segments_BxL, is_left_only))
            states[0] = x_BxLxD
        return [*states[:-1], states[-1] if self.model.norm_placement == "post" else self.norm(states[-1])]

    def make_masks(self, segments_BxL, is_left_only):
        """What is added to the scores of attention in global and in local layers."""
        model, place_L = self.model, torch.arange(segments_BxL.shape[1], device=segments_BxL.device)
        distance_LxL = place_L - place_L[:, None]
        visible_Bx1xLxL = (segments_BxL[:, :, None] == segments_BxL[:, None])[:, None]
        if model.directionality == "causal" or is_left_only:
            visible_Bx1xLxL = visible_Bx1xLxL & (distance_LxL <= 0)
        bias_HxLxL = torch.zeros((), device=segments_BxL.device)
        if model.positions == "alibi":
            bias_HxLxL = compute_alibi(model.num_heads, distance_LxL)
        if model.positions == "relative":
            bias_HxLxL = self.relative_bias[compute_buckets(distance_LxL)].movedim(-1, 0)
        near_LxL = distance_LxL.abs() <= model.local_window // 2
        masks = visible_Bx1xLxL, visible_Bx1xLxL & near_LxL
        dtype = self.stack.layers["layer"].attention.qkv.kernel.dtype
        return [torch.where(mask, bias_HxLxL, -math.inf).to(dtype) for mask in masks]

    def list_neighbors(self):
        """The places that a feedforward model reads, counted from the token itself."""
        window, right = self.model.window, range(1, self.model.window + 1)
        left = {"bidirectional": range(-window, 0)}.get(self.model.directionality, range(1 - window, 1))
        return [*left, *([] if self.model.directionality == "causal" else right)]

    def mix_neighbors(self, x_BxLxD, segments_BxL, is_left_only):
        """The embeddings of the neighbours in order, or their mean, through a dense layer."""
        (_, L, _), window, parts, count_BxLx1 = x_BxLxD.shape, self.model.window, [], 0
        padded = F.pad(x_BxLxD, (0, 0, window, window))
        segments = F.pad(segments_BxL, (window, window), value=-1)
        for place in self.list_neighbors():
            start = place + window
            same_BxLx1 = (segments[:, start : start + L] == segments_BxL)[..., None]
            same_BxLx1 = same_BxLx1 & (not (is_left_only and place > 0))
            parts.append(padded[:, start : start + L] * same_BxLx1)
            count_BxLx1 = count_BxLx1 + same_BxLx1.to(x_BxLxD.dtype)
        is_bag = self.model.cell == "bag"
        return self.context(sum(parts) / count_BxLx1.clamp(min=1) if is_bag else torch.cat(parts, -1))
