"""A recurrent decoder that attends to its source before each token (Bahdanau et al. 2015, arXiv 1409.0473, appendix A).

Letters in array names: S tokens of the source, H units of the state and of the alignment, G = 3 * H gates.
"""
import flax.linen as nn
import jax
import jax.numpy as jnp

from mlm.base import config
from mlm.models import cpu_kernels, layers, rnn
from mlm.models.recurrence import product


class Decoder(nn.Module):
    """One GRU layer over a row's tokens, each beside what its state before took of the source.

    Theirs but for: a reset gate behind the product, as in rnn.py; the source's states from layers that are summed and
    normed; the readout a tanh, not a maxout, of model.width units, since the output layer is the embeddings' table.
    """

    model: config.Model

    def setup(self):
        model = self.model
        H, G = model.rnn_dim, 3 * model.rnn_dim
        initial, orthogonal = layers.initializer(model), nn.initializers.orthogonal()
        self.input = layers.dense(model, G, "input", rnn.input_bias(model))
        self.key, self.start = layers.dense(model, H, "key"), layers.dense(model, H, "start")
        self.readout = layers.dense(model, model.width, "readout")
        self.query = self.param("query", initial, (H, H))
        self.score = self.param("score", initial, (H, 1))
        self.context = self.param("context", initial, (model.width, G))
        self.kernel = self.param("kernel", lambda key: jnp.concatenate(
            [orthogonal(k, (H, H)) for k in jax.random.split(key, 3)], 1))
        self.bias = self.param("bias", nn.initializers.zeros, (G,))

    def source(self, source_BxSxD, visible_BxLxS):
        """What steps need of the source: keys_BxSxH, and start_BxLxH, the states before rows that begin at a token.

        Those follow from the first token of the source that is seen there, whose state has read it all.
        """
        first_BxSxH = jnp.tanh(self.start(source_BxSxD)).astype(jnp.float32)
        start_BxLxH = jnp.take_along_axis(first_BxSxH, visible_BxLxS.argmax(-1)[..., None], 1)
        return self.key(source_BxSxD), jnp.where(visible_BxLxS.any(-1, keepdims=True), start_BxLxH, 0)

    def step(self, s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD):
        """The state after a token, and context_BxD, what it took of the source's visible tokens: nothing of none."""
        dtype = self.model.dtype
        query_BxH = product(s_BxH, self.query.astype(dtype)).astype(keys_BxSxH.dtype)
        energy_BxS = product(jnp.tanh(query_BxH[:, None] + keys_BxSxH), self.score.astype(dtype))[..., 0]
        weights_BxS = jax.nn.softmax(jnp.where(visible_BxS, energy_BxS, -1e9)) * visible_BxS
        context_BxD = jnp.einsum("bs,bsd->bd", weights_BxS.astype(dtype), source_BxSxD.astype(dtype),
                                 preferred_element_type=jnp.float32)
        given_BxG = input_BxG + product(context_BxD, self.context.astype(dtype))
        (s_BxH,) = rnn.gru(given_BxG, product(s_BxH, self.kernel.astype(dtype)) + self.bias, (s_BxH,))
        return s_BxH, context_BxD

    def further(self, s_BxH, x_BxD, visible_BxS, keys_BxSxH, source_BxSxD):
        """h_BxD of a further token, and the state after it."""
        input_BxG = self.input(x_BxD).astype(jnp.float32)
        s_BxH, context_BxD = self.step(s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD)
        return self.read_out(s_BxH, context_BxD, x_BxD), s_BxH

    def read_out(self, s, context, x):
        """h...xD of states, contexts and embeddings (their equation 4: the next token follows from all three)."""
        every = [part.astype(x.dtype) for part in (s, context, x)]
        return jnp.tanh(self.readout(jnp.concatenate(every, -1)))

    def __call__(self, x_BxLxD, segments_BxL, source_BxSxD, visible_BxLxS, key_B):
        keys_BxSxH, start_BxLxH = self.source(source_BxSxD, visible_BxLxS)
        begins_BxL = jnp.pad(segments_BxL[:, 1:] != segments_BxL[:, :-1], ((0, 0), (1, 0)), constant_values=True)

        def step(s_BxH, reads):
            input_BxG, start_BxH, begins_B, visible_BxS = reads
            s_BxH = jnp.where(begins_B[:, None], start_BxH, s_BxH)
            after = self.step(s_BxH, input_BxG, visible_BxS, keys_BxSxH, source_BxSxD)
            return after[0], after

        each = (self.input(x_BxLxD).astype(jnp.float32), start_BxLxH, begins_BxL, visible_BxLxS)
        if self.model.remat or cpu_kernels.takes(
            self.model, "recurrence"
        ):  # B * S * H tanhs are made again sooner than read
            step = jax.checkpoint(step, prevent_cse=False)
        _, states = jax.lax.scan(step, jnp.zeros_like(start_BxLxH[:, 0]), [x.swapaxes(0, 1) for x in each],
                                 unroll=self.model.rnn_unroll)
        s_BxLxH, context_BxLxD = (x.swapaxes(0, 1) for x in states)
        return layers.dropout(self.read_out(s_BxLxH, context_BxLxD, x_BxLxD), key_B, self.model.dropout)


def start(model: config.Model, params, source_BxSxD, visible_BxS, room: int) -> dict:
    """The cache of rows that hold nothing yet, as decoder.start."""
    keys_BxSxH, state_Bx1xH = Decoder(model).apply({"params": params}, source_BxSxD, visible_BxS[:, None],
                                                   method="source")
    return {"state_1xBxH": state_Bx1xH.swapaxes(0, 1), "visible_1xBxS": visible_BxS[None],
            "keys_1xBxSxH": keys_BxSxH[None], "source_1xBxSxD": source_BxSxD[None]}


def after(model: config.Model, params, cache: dict, place_B, x_BxD) -> tuple[jax.Array, dict]:
    """h_BxD of a further token of each row, and the cache with it, as decoder.after."""
    state_BxH, *source = (cache[name][0] for name in ("state_1xBxH", "visible_1xBxS", "keys_1xBxSxH", "source_1xBxSxD"))
    h_BxD, state_BxH = Decoder(model).apply({"params": params}, state_BxH, x_BxD, *source, method="further")
    return h_BxD, cache | {"state_1xBxH": state_BxH[None]}
