"""The Transformer (Vaswani et al. 2017) as BERT, GPT and ModernBERT use it; config.model names its blocks."""

import functools

import flax.linen as nn

from mlm.base import config, errors, types
from mlm.models import attention, incremental, layers, lm, positions, stack


class TransformerLayer(stack.ResidualLayer):
    """A Transformer layer: attention and an MLP, each with norms and a residual connection."""

    @nn.compact
    def __call__(self, x_BxLxD, number, context: positions.AttentionContext, key_B, attend=attention.attend):
        """Returns x_BxLxD; the arguments are those of `attention.Attention`."""
        self_attention, mlp = attention.Attention(self.model, name="attention"), layers.MLP(self.model, name="mlp")
        keys = [layers.fold_in(key_B, site) for site in range(3)]
        sublayer = lambda x_BxLxD: self_attention(x_BxLxD, number, context, keys[0], attend)
        x_BxLxD = self.add("attention", sublayer, x_BxLxD, keys[1], skip_norm=self.skips_norm(number))
        return self.add("mlp", mlp, x_BxLxD, keys[2])


TransformerEncoder = functools.partial(
    stack.NormalizedStack,
    layer=TransformerLayer,
    prepare=lambda module, x_BxLxD, *segments: (x_BxLxD, positions.declare_context(module, *segments)),
)


def check(cfg: config.Config) -> None:
    """Raises ConfigError for a config that a Transformer cannot use."""
    model = cfg.model
    divides = model.width % model.num_heads == 0
    errors.require_field(cfg, "model.num_heads", divides, f"a divisor of config.model.width = {model.width}")
    fits = model.positions != "rotary" or model.width // model.num_heads % 2 == 0
    errors.require_field(cfg, "model.num_heads", fits, "heads of an even width", "model.positions")
    fits = model.positions != "disentangled" or model.position_buckets // 2 < model.max_positions - 1
    expected = f"less than twice config.model.max_positions = {model.max_positions}"
    errors.require_field(cfg, "model.position_buckets", fits, expected)
    if model.positions == "rotary" and model.rope_scaling:
        has_length = model.rope_original_len or (model.rope_factor and model.rope_scaling != "yarn")
        expected = "the tokens of an example before; or init.run or init.hub, which say it"
        errors.require_field(cfg, "model.rope_original_len", bool(has_length), expected, "model.rope_scaling")
        is_wide = model.width // model.num_heads > 2
        errors.require_field(cfg, "model.num_heads", is_wide, "heads of more than two units", "model.rope_scaling")
    is_base = model.local_rope_theta == 0 or model.local_rope_theta >= 1
    errors.require_field(cfg, "model.local_rope_theta", is_base, "0, or 1 to 1e12")
    errors.require_field(cfg, "model.local_window", model.local_window % 2 == 0, "0, or an even number of tokens")
    if model.local_window:
        name = "model.global_layers" if model.global_layers else "model.global_every"
        local = [positions.is_local(model, number) for number in range(1, model.num_layers + 1)]
        has_local = any(local) and max(model.global_layers, default=1) <= model.num_layers
        expected = f"a value that leaves a local layer of config.model.num_layers = {model.num_layers}"
        errors.require_field(cfg, name, has_local, expected, "model.local_window")
    fits = cfg.pack.seq_len <= model.max_positions
    errors.require_field(cfg, "pack.seq_len", fits, f"at most config.model.max_positions = {model.max_positions}")


def build(model: config.Model, vocab_size: int) -> types.Model:
    """The pure functions of the model over a vocabulary of this size."""
    decoder = incremental.build_attention_decoder(TransformerLayer)
    return lm.build(model, vocab_size, TransformerEncoder, decoder, model.positions, has_attention=True)


SPEC = types.ModelSpec(
    build,
    check,
    conditional_fields=(
        *("mlp_dim", "num_heads", "activation", "positions", "max_positions", "attention_dropout", "qk_norm"),
        *("attention_gate", "rope_theta", "rope_scaling", "rope_factor", "rope_original_len"),
        *("local_window", "global_every", "global_layers", "local_rope_theta"),
        *("first_norm", "relative_bias", "position_buckets"),
    ),
)
