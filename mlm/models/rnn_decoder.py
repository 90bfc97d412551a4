"""A recurrent decoder with attention to the source (Bahdanau et al. 2015, arXiv 1409.0473, appendix A).

Letters in array names: S tokens of the source, H units of the state and of the alignment, G = 3 * H gates.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import layers, platform_kernels
from mlm.models.recurrence import CELLS, build_bias_initializer, build_kernel_initializer, gru_step, matmul_float32


class RecurrentDecoder(nn.Module):
    """One GRU layer, whose input is a token's embedding and the source context that the previous state attends to.

    It differs from the paper: the reset gate is applied after the product, as in rnn.py; the states of the source are
    those of a residual encoder with a final norm; the readout is a tanh of model.width units, not a maxout, since the
    output layer is tied to the embeddings.
    """

    model: config.Model

    def setup(self):
        """Declares the parameters of the alignment, the start state, the GRU and the readout."""
        model = self.model
        H, G = model.rnn_dim, 3 * model.rnn_dim
        initial = layers.initializer(model)
        self.input = layers.dense(model, G, "input", build_bias_initializer(model, CELLS["gru"].chrono_gates))
        self.key, self.start = layers.dense(model, H, "key"), layers.dense(model, H, "start")
        self.readout = layers.dense(model, model.width, "readout")
        self.query = self.param("query", initial, (H, H))
        self.score = self.param("score", initial, (H, 1))
        self.context = self.param("context", initial, (model.width, G))
        self.kernel = self.param("kernel", build_kernel_initializer(model, 3))
        has_bias = model.bias == "all"
        self.bias = self.param("bias", nn.initializers.zeros, (G,)) if has_bias else jnp.zeros(G)

    def project_source(self, source_BxSxD, visible_BxLxS):
        """(keys_BxSxH, start_BxLxH: before a sequence, of the source's first visible token, which has read it all)."""
        first_BxSxH = jnp.tanh(self.start(source_BxSxD)).astype(jnp.float32)
        start_BxLxH = jnp.take_along_axis(first_BxSxH, visible_BxLxS.argmax(-1)[..., None], 1)
        return self.key(source_BxSxD), jnp.where(visible_BxLxS.any(-1, keepdims=True), start_BxLxH, 0)

    def step(self, s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD):
        """(the state after a token, context_BxD); the context is zero if no token of the source is visible."""
        dtype = self.model.dtype
        query_BxH = matmul_float32(s_BxH, self.query.astype(dtype)).astype(keys_BxSxH.dtype)
        energy_BxS = matmul_float32(jnp.tanh(query_BxH[:, None] + keys_BxSxH), self.score.astype(dtype))[..., 0]
        weights_BxS = jax.nn.softmax(jnp.where(visible_BxS, energy_BxS, -1e9)) * visible_BxS
        context_BxD = jnp.einsum(
            "bs,bsd->bd", weights_BxS.astype(dtype), source_BxSxD.astype(dtype), preferred_element_type=jnp.float32
        )
        gates_BxG = input_BxG + matmul_float32(context_BxD, self.context.astype(dtype))
        (s_BxH,) = gru_step(gates_BxG, matmul_float32(s_BxH, self.kernel.astype(dtype)) + self.bias, (s_BxH,))
        return s_BxH, context_BxD

    def compute_readout(self, s, context, x):
        """h_...xD from states, contexts and embeddings (equation 4 of the paper)."""
        inputs = [part.astype(x.dtype) for part in (s, context, x)]
        return jnp.tanh(self.readout(jnp.concatenate(inputs, -1)))

    def __call__(self, x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, key_B):
        """Returns h_BxLxD, the readouts of all tokens; the state starts anew at the first token of each segment."""
        keys_BxSxH, start_BxLxH = self.project_source(source_BxSxD, visible_BxLxS)
        is_first_BxL = jnp.pad(segments_BxL[:, 1:] != segments_BxL[:, :-1], ((0, 0), (1, 0)), constant_values=True)

        def step(s_BxH, inputs):
            input_BxG, start_BxH, is_first_B, visible_BxS = inputs
            s_BxH = jnp.where(is_first_B[:, None], start_BxH, s_BxH)
            state_and_context = self.step(s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD)
            return state_and_context[0], state_and_context

        inputs = (self.input(x_BxLxD).astype(jnp.float32), start_BxLxH, is_first_BxL, visible_BxLxS)
        if self.model.remat or platform_kernels.uses_kernel(self.model, "recurrence"):
            # It is faster to recompute the B * S * H tanhs of a step than to read them from memory.
            step = jax.checkpoint(step, prevent_cse=False)
        _, states = jax.lax.scan(
            step, jnp.zeros_like(start_BxLxH[:, 0]), [x.swapaxes(0, 1) for x in inputs], unroll=self.model.rnn_unroll
        )
        s_BxLxH, context_BxLxD = (x.swapaxes(0, 1) for x in states)
        return layers.dropout(self.compute_readout(s_BxLxH, context_BxLxD, x_BxLxD), key_B, self.model.dropout)


def init_cache(model: config.Model, params, source_BxSxD, visible_BxS, max_len: int) -> Any:
    """The cache of empty sequences, as decoder.init_cache: their states, then what each step reads of the source."""
    bound: Any = RecurrentDecoder(model).bind({"params": params})
    keys_BxSxH, state_Bx1xH = bound.project_source(source_BxSxD, visible_BxS[:, None])
    return tuple(x[None] for x in (state_Bx1xH[:, 0], visible_BxS, keys_BxSxH, source_BxSxD))


def decode_step(model: config.Model, params, cache, position_B, x_BxD) -> tuple[jax.Array, Any]:
    """(h_BxD of the next token of each sequence, the updated cache), as decoder.decode_step."""
    state_BxH, *source = (x[0] for x in cache)
    bound: Any = RecurrentDecoder(model).bind({"params": params})
    state_BxH, context_BxD = bound.step(state_BxH, bound.input(x_BxD).astype(jnp.float32), *source)
    return bound.compute_readout(state_BxH, context_BxD, x_BxD), (state_BxH[None], *cache[1:])
