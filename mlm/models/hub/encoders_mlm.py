"""The encoders of mlm in torch, and the layers of those that do not recur.

Of the layers of a stack each parameter holds all, along the first axis.

Letters in array names: B examples, L tokens, D width, H heads of d entries.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from .layers_mlm import ACTIVATIONS, MLP, Dense, Norm, ResidualLayer, find_entry
from .recurrence_mlm import RecurrentLayer

NUM_BUCKETS = 32  # of relative positions, half of them on each side
MAX_DISTANCE = 128  # tokens that are further apart share the last bucket


class AttentionBlock(nn.Module):
    """What attention to a text itself and to a source share: norms of queries and keys, gates, and the output layer."""

    def __init__(self, model):
        super().__init__()
        self.model, has_bias = model, model.bias == "all"
        self.out = Dense(model.width, model.width, has_bias)
        make_norm = lambda: Norm(model, model.width // model.num_heads) if model.qk_norm else nn.Identity()
        self.q_norm, self.k_norm = make_norm(), make_norm()
        if model.attention_gate:
            self.gate = Dense(model.width, model.num_heads, has_bias)

    def split_heads(self, x_BxLxE, num_parts):
        """The heads of each part of the last axis, BxLxHxd."""
        return x_BxLxE.unflatten(-1, (num_parts, self.model.num_heads, -1)).unbind(2)

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

    def forward(self, x_BxLxD, mask_BxHxLxL, is_local, relative_RxD, row_LxL):
        q, k, v = self.project(x_BxLxD)
        if self.model.positions == "rotary":
            period_h, size = compute_periods(self.model, is_local, q.shape[-1] // 2)
            q, k = rotate(q, period_h, size), rotate(k, period_h, size)
        if self.model.positions == "disentangled":  # a score has three terms: all are divided by sqrt(3 d)
            q = q / 3**0.5
            mask_BxHxLxL = mask_BxHxLxL + self.score_distances(q, k, relative_RxD, row_LxL)
        return self.mix(x_BxLxD, q, k, v, mask_BxHxLxL)

    def project(self, x_BxLxD):
        """q, k and v, each BxLxHxd."""
        q, k, v = self.split_heads(self.qkv(x_BxLxD), 3)
        return self.q_norm(q), self.k_norm(k), v

    def score_distances(self, q, k, relative_RxD, row_LxL):
        """What the scores BxHxLxL have of distances beside content."""
        relative_q, relative_k, _ = (x.transpose(1, 2) for x in self.project(relative_RxD[None]))
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        row_BxHxLxL = row_LxL.expand(*q.shape[:2], *row_LxL.shape)
        bias_BxHxLxL = (q @ relative_k.mT).gather(3, row_BxHxLxL)
        bias_BxHxLxL = bias_BxHxLxL + (k @ relative_q.mT / 3**0.5).gather(3, row_BxHxLxL.mT).mT
        return bias_BxHxLxL / q.shape[-1] ** 0.5


def compute_periods(model, is_local, half):
    """Tokens per radian of the rotary angles, and the factor of sine and cosine (model.rope_scaling)."""
    theta, factor = model.rope_theta, model.rope_factor
    if is_local:
        return (model.local_rope_theta or theta) ** (torch.arange(half) / half), 1.0
    if model.rope_scaling == "ntk":
        theta = theta * factor ** (half / (half - 1))
    period_h = theta ** (torch.arange(half) / half)
    if model.rope_scaling == "linear":
        return factor * period_h, 1.0
    if model.rope_scaling != "yarn":
        return period_h, 1.0
    low, high = (half * math.log(model.rope_original_len / (2 * math.pi * turns), theta) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * half - 1)
    divided_h = ((torch.arange(half) - low) / (high - low or 1e-3)).clamp(0, 1)
    return period_h / (divided_h / factor + 1 - divided_h), 0.1 * math.log(factor) + 1


def rotate(x_BxLxHxd, period_h, size):
    """Rotary position embeddings (Su et al. 2021)."""
    place_L = torch.arange(x_BxLxHxd.shape[1], device=x_BxLxHxd.device)
    angle_Lx1xh = place_L[:, None, None] / period_h.to(x_BxLxHxd.device)
    sin, cos = ((size * x).to(x_BxLxHxd.dtype) for x in (angle_Lx1xh.sin(), angle_Lx1xh.cos()))
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


def compute_rows(model, offset_LxL):
    """The row of the embeddings of distances for each query and key (DeBERTaV2), half of them for each side."""
    buckets, exact, size_LxL = model.position_buckets, model.position_buckets // 2, offset_LxL.abs()
    largest = torch.tensor((model.max_positions - 1) / exact).log()
    bucket_LxL = exact + ((size_LxL.clamp(min=exact) / exact).log() / largest * (exact - 1)).ceil().long()
    bucket_LxL = offset_LxL.sign() * torch.where(size_LxL <= exact, size_LxL, bucket_LxL)
    return (buckets + bucket_LxL).clamp(0, 2 * buckets - 1)


class TransformerLayer(ResidualLayer):
    """Attention and an MLP."""

    def __init__(self, model, *prefixes):
        super().__init__(model, "attention_", "mlp_", *prefixes)
        self.attention, self.mlp = Attention(model), MLP(model)

    def forward(self, x_BxLxD, number, *context):
        return self.add("mlp_", self.mlp, self.attend_to_self(x_BxLxD, number, *context))

    def attend_to_self(self, x_BxLxD, number, global_mask, local_mask, *relative):
        """x_BxLxD plus what attention makes of it in layer `number`."""
        model, is_local = self.model, self.is_local(number)
        mask = local_mask if is_local else global_mask
        attend = lambda x_BxLxD: self.attention(x_BxLxD, mask, is_local, *relative)
        return self.add("attention_", attend, x_BxLxD, number == 1 and not model.first_norm)

    def is_local(self, number):
        """Whether layer `number` sees the nearest tokens alone."""
        if not self.model.local_window:
            return False
        if self.model.global_layers:
            return number not in self.model.global_layers
        return not self.model.global_every or (number - 1) % self.model.global_every != 0


class FeedforwardLayer(ResidualLayer):
    """An MLP."""

    def __init__(self, model):
        super().__init__(model, "")
        self.mlp = MLP(model)

    def forward(self, x_BxLxD, number):
        return self.add("", self.mlp, x_BxLxD)


class GatedConvolution(nn.Module):
    """A gated linear unit, and a filter for each of its units over the tokens within model.window."""

    def __init__(self, model):
        super().__init__()
        self.model, has_bias = model, model.bias == "all"
        self.offsets = range(-model.window, 1 if model.directionality == "causal" else model.window + 1)
        self.halves = Dense(model.width, 2 * model.width, has_bias)
        self.filter = nn.Parameter(torch.empty(len(self.offsets), model.width))
        self.out = Dense(model.width, model.width, has_bias)

    def forward(self, x_BxLxD, segments_BxL, is_left_only):
        taps = gather_neighbors(F.glu(self.halves(x_BxLxD)), segments_BxL, self.offsets, is_left_only)
        return self.out(sum(tap_BxLxD * self.filter[k] for k, (tap_BxLxD, _) in enumerate(taps)))


class SpatialGatingMLP(nn.Module):
    """An MLP of which one half gates the other after a sum over tokens, weighted by their distance."""

    def __init__(self, model):
        super().__init__()
        self.model, has_bias = model, model.bias == "all"
        self.activation = find_entry(ACTIVATIONS, model, "activation", "layers_mlm.py")
        num_sides = 1 if model.directionality == "causal" else 2
        self.halves = Dense(model.width, 2 * model.mlp_dim, has_bias)
        self.gate_norm = Norm(model, model.mlp_dim)
        self.filter = nn.Parameter(torch.empty(num_sides * (model.max_positions - 1) + 1))
        self.filter_bias = nn.Parameter(torch.empty(())) if has_bias else 1
        self.down = Dense(model.mlp_dim, model.width, has_bias)

    def forward(self, x_BxLxD, visible_BxLxL):
        h_BxLxE, gate_BxLxE = self.activation(self.halves(x_BxLxD)).chunk(2, -1)
        place_L = torch.arange(x_BxLxD.shape[1], device=x_BxLxD.device)
        index_LxL = (place_L - place_L[:, None] + self.model.max_positions - 1).clamp(max=len(self.filter) - 1)
        weight_BxLxL = self.filter[index_LxL] * visible_BxLxL
        return self.down(h_BxLxE * (weight_BxLxL @ self.gate_norm(gate_BxLxE) + self.filter_bias))


class FourierMixing(nn.Module):
    """The real part of a Fourier transform over a text's tokens and their units."""

    def __init__(self, model):
        super().__init__()

    def forward(self, x_BxLxD, visible_BxLxL):
        place_BxL, length_Bx1x1 = visible_BxLxL.tril(-1).sum(-1), visible_BxLxL.sum(-1)[..., None]
        turn_BxLxL = place_BxL[:, :, None] * place_BxL[:, None] % length_Bx1x1 / length_Bx1x1
        wave_BxLxL = torch.polar(visible_BxLxL.float(), -2 * math.pi * turn_BxLxL)
        return (wave_BxLxL @ torch.fft.fft(x_BxLxD.float())).real.to(x_BxLxD.dtype)


MIXERS = {"conv": GatedConvolution, "gmlp": SpatialGatingMLP, "fnet": FourierMixing}


class MixerLayer(ResidualLayer):
    """A sublayer that mixes tokens and, but for gMLP's, an MLP."""

    def __init__(self, model):
        super().__init__(model, "mixing_", *([] if model.cell == "gmlp" else ["mlp_"]))
        self.mixing = find_entry(MIXERS, model, "cell", "encoders_mlm.py")(model)
        self.mlp = None if model.cell == "gmlp" else MLP(model)

    def forward(self, x_BxLxD, number, *shared):
        mix = lambda x_BxLxD: self.mixing(x_BxLxD, *shared)
        x_BxLxD = self.add("mixing_", mix, x_BxLxD, number == 1 and not self.model.first_norm)
        return x_BxLxD if self.mlp is None else self.add("mlp_", self.mlp, x_BxLxD)


def gather_neighbors(x_BxLxD, segments_BxL, offsets, is_left_only):
    """The neighbours at these places, counted from each token, and whether they are of its segment; else zero."""
    L, window, pairs = x_BxLxD.shape[1], max(map(abs, offsets)), []
    padded, segments = F.pad(x_BxLxD, (0, 0, window, window)), F.pad(segments_BxL, (window, window), value=-1)
    for place in offsets:
        start = place + window
        same_BxLx1 = (segments[:, start : start + L] == segments_BxL)[..., None]
        same_BxLx1 = same_BxLx1 & (not (is_left_only and place > 0))
        pairs.append((padded[:, start : start + L] * same_BxLx1, same_BxLx1))
    return pairs


POSITIONS = {"alibi": compute_alibi}  # bias_HxLxL; None: none that is fixed
POSITIONS |= dict.fromkeys(("none", "learned", "sinusoidal", "rotary", "relative", "disentangled"))
LAYERS = {"transformer": TransformerLayer, "rnn": RecurrentLayer, "feedforward": FeedforwardLayer, "mixer": MixerLayer}


class Stack(nn.Module):
    """The layers of an encoder; each parameter holds those of all layers, which run in turn until num_layers have."""

    def __init__(self, model, layer):
        super().__init__()
        self.num_layers, self.gradient_checkpointing = model.num_layers, False
        self.num_unique = model.num_unique_layers or model.num_layers
        for module in layer.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.new_empty(self.num_unique, *parameter.shape)))
        self.layers = nn.ModuleDict({"layer": layer})

    def forward(self, x_BxLxD, *shared):
        """The states below the first layer and above each one."""
        layer, states = self.layers["layer"], [x_BxLxD]
        unstacked = {name: parameter.unbind() for name, parameter in layer.named_parameters()}

        def run_layer(k, x_BxLxD, *shared):
            parameters = {name: parts[k % self.num_unique] for name, parts in unstacked.items()}
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
        self.norm = nn.Identity() if model.norm_placement == "post" else Norm(model, model.width)
        self.compute_bias = find_entry(POSITIONS, model, "positions", "encoders_mlm.py")
        if model.positions == "relative" or model.relative_bias:
            self.relative_bias = nn.Parameter(torch.empty(NUM_BUCKETS, model.num_heads))
        if model.positions == "disentangled":
            self.relative_embedding = nn.Parameter(torch.empty(2 * model.position_buckets, model.width))
            self.relative_norm = Norm(model, model.width)
        if model.family == "feedforward":
            num_neighbors = 1 if model.cell == "bag" else len(self.list_neighbors())
            self.context = Dense(num_neighbors * model.width, model.width, model.bias == "all")

    def forward(self, x_BxLxD, segments_BxL, is_left_only):
        """The states below the first layer and above each one; segments_BxL: 0 on padding."""
        if self.model.family == "transformer":
            states = self.stack(x_BxLxD, *self.make_context(segments_BxL, is_left_only))
        elif self.model.family == "rnn" or self.model.cell == "conv":
            states = self.stack(x_BxLxD, segments_BxL, is_left_only)
        elif self.model.family == "mixer":
            states = self.stack(x_BxLxD, self.find_visible(segments_BxL, is_left_only))
        else:
            states = self.stack(self.mix_neighbors(x_BxLxD, segments_BxL, is_left_only))
            states[0] = x_BxLxD
        return [*states[:-1], self.norm(states[-1])]

    def find_visible(self, segments_BxL, is_left_only):
        """visible_BxLxL: the tokens of its segment that each token sees."""
        visible_BxLxL = segments_BxL[:, :, None] == segments_BxL[:, None]
        return visible_BxLxL.tril() if self.model.directionality == "causal" or is_left_only else visible_BxLxL

    def make_context(self, segments_BxL, is_left_only):
        """What is added to the scores of attention in global and in local layers, the embeddings of distances that
        queries and keys meet, and the row of each query and key; None where they meet none.
        """
        model, place_L = self.model, torch.arange(segments_BxL.shape[1], device=segments_BxL.device)
        distance_LxL = place_L - place_L[:, None]
        visible_Bx1xLxL = self.find_visible(segments_BxL, is_left_only)[:, None]
        bias_HxLxL = torch.zeros((), device=segments_BxL.device)
        if self.compute_bias:
            bias_HxLxL = self.compute_bias(model.num_heads, distance_LxL)
        if model.positions == "relative" or model.relative_bias:
            bias_HxLxL = bias_HxLxL + self.relative_bias[compute_buckets(distance_LxL)].movedim(-1, 0)
        near_LxL = distance_LxL.abs() <= model.local_window // 2
        masks = visible_Bx1xLxL, visible_Bx1xLxL & near_LxL
        dtype = self.stack.layers["layer"].attention.qkv.kernel.dtype
        context = [torch.where(mask, bias_HxLxL, -math.inf).to(dtype) for mask in masks]
        if model.positions != "disentangled":
            return *context, None, None
        return *context, self.relative_norm(self.relative_embedding), compute_rows(model, -distance_LxL)

    def list_neighbors(self):
        """The places that a feedforward model reads, counted from the token itself."""
        window, right = self.model.window, range(1, self.model.window + 1)
        left = {"bidirectional": range(-window, 0)}.get(self.model.directionality, range(1 - window, 1))
        return [*left, *([] if self.model.directionality == "causal" else right)]

    def mix_neighbors(self, x_BxLxD, segments_BxL, is_left_only):
        """The embeddings of the neighbours in order, or their mean, through a dense layer."""
        parts, same = zip(*gather_neighbors(x_BxLxD, segments_BxL, self.list_neighbors(), is_left_only), strict=True)
        if self.model.cell == "window":
            return self.context(torch.cat(parts, -1))
        count_BxLx1 = sum(same_BxLx1.to(x_BxLxD.dtype) for same_BxLx1 in same)
        return self.context(sum(parts) / count_BxLx1.clamp(min=1))
