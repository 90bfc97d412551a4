"""The layers of mlm in torch that all its models share.

Letters in array names: B examples, L tokens, D width.
"""

import torch
import torch.nn.functional as F
from torch import nn

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "geglu": lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}


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
