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
}
GATES = {"geglu": F.gelu, "swiglu": F.silu}  # the activation of one half, which multiplies the other
NORMS = {"layernorm": F.layer_norm, "rmsnorm": lambda x, shape, scale, bias, eps: F.rms_norm(x, shape, scale, eps)}


def find_entry(entries, model, field, file):
    """What a file has for the value of a field of the model. Raises NotImplementedError where it has nothing."""
    value = getattr(model, field)
    if value not in entries:
        raise NotImplementedError(f"model.{field} = {value!r}: {file} has no such entry, only {', '.join(entries)}")
    return entries[value]


class Dense(nn.Module):
    """A dense layer."""

    def __init__(self, inputs, outputs, bias):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x):
        return F.linear(x, self.kernel.T, self.bias)


class Norm(nn.Module):
    """The norm that model.norm names; layernorm alone has a bias."""

    def __init__(self, model, width):
        super().__init__()
        self.normalize, self.eps = find_entry(NORMS, model, "norm", "layers_mlm.py"), model.norm_eps
        self.scale = nn.Parameter(torch.empty(width))
        has_bias = model.norm == "layernorm" and model.bias in ("all", "norms")
        self.bias = nn.Parameter(torch.empty(width)) if has_bias else None

    def forward(self, x):
        return self.normalize(x, self.scale.shape, self.scale, self.bias, self.eps)


class MLP(nn.Module):
    """Two dense layers with model.activation between them; a gated one reads two halves."""

    def __init__(self, model):
        super().__init__()
        self.activation = find_entry(ACTIVATIONS | GATES, model, "activation", "layers_mlm.py")
        self.num_halves = 2 if model.activation in GATES else 1
        self.up = Dense(model.width, self.num_halves * model.mlp_dim, model.bias == "all")
        self.down = Dense(model.mlp_dim, model.width, model.bias == "all")

    def forward(self, x):
        x, *factors = self.up(x).chunk(self.num_halves, -1)
        x = self.activation(x)
        return self.down(x * factors[0] if factors else x)


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
