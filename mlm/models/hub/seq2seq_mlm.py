"""The encoder-decoders of mlm in torch, for `AutoModelForSeq2SeqLM`; `mlm export` writes it beside modeling_mlm.py.

Letters in array names: B examples, L tokens of the target, S of the source, D width, V vocabulary, H units, G entries
of all gates.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin
from transformers import modeling_outputs as outputs

from .encoders_mlm import AttentionBlock, Encoder, TransformerLayer
from .layers_mlm import Dense
from .modeling_mlm import MLMForMaskedLM, count_positions
from .recurrence_mlm import step_cell


class CrossAttention(AttentionBlock):
    """Attention to the source."""

    def __init__(self, model):
        super().__init__(model)
        self.query = Dense(model.width, model.width, model.bias == "all")
        self.source = Dense(model.width, 2 * model.width, model.bias == "all")

    def forward(self, x_BxLxD, source_BxSxD, is_seen_Bx1x1xS):
        (q,), (k, v) = self.split_heads(self.query(x_BxLxD), 1), self.split_heads(self.source(source_BxSxD), 2)
        return self.mix(x_BxLxD, self.q_norm(q), self.k_norm(k), v, is_seen_Bx1x1xS)


class DecoderLayer(TransformerLayer):
    """Attention to the target's tokens before, attention to the source, and an MLP."""

    def __init__(self, model):
        super().__init__(model, "cross_")
        self.cross = CrossAttention(model)

    def forward(self, x_BxLxD, number, *context):
        *own, source_BxSxD, is_seen_Bx1x1xS = context
        x_BxLxD = self.attend_to_self(x_BxLxD, number, *own)
        x_BxLxD = self.add("cross_", lambda x_BxLxD: self.cross(x_BxLxD, source_BxSxD, is_seen_Bx1x1xS), x_BxLxD)
        return self.add("mlp_", self.mlp, x_BxLxD)


class Decoder(Encoder):
    """A stack of such layers."""

    def __init__(self, model):
        super().__init__(model, DecoderLayer)

    def forward(self, x_BxLxD, segments_BxL, source_BxSxD, is_seen_BxS):
        """The last states; is_seen_BxS: which tokens of the source are no padding."""
        context = *self.make_context(segments_BxL, False), source_BxSxD, is_seen_BxS[:, None, None]
        return self.norm(self.stack(x_BxLxD, *context)[-1])


class RecurrentDecoder(nn.Module):
    """One GRU layer that attends to the source by its state before each token (Bahdanau et al. 2015)."""

    def __init__(self, model):
        super().__init__()
        self.model, has_bias, num_units = model, model.bias == "all", model.rnn_dim
        self.input = Dense(model.width, 3 * num_units, has_bias)
        self.key, self.start = (Dense(model.width, num_units, has_bias) for _ in range(2))
        self.readout = Dense(num_units + 2 * model.width, model.width, has_bias)
        self.query = nn.Parameter(torch.empty(num_units, num_units))
        self.score = nn.Parameter(torch.empty(num_units, 1))
        self.context = nn.Parameter(torch.empty(model.width, 3 * num_units))
        self.kernel = nn.Parameter(torch.empty(num_units, 3 * num_units))
        self.bias = nn.Parameter(torch.empty(3 * num_units)) if has_bias else 0

    def forward(self, x_BxLxD, segments_BxL, source_BxSxD, is_seen_BxS):
        """The readouts of all tokens; is_seen_BxS: which tokens of the source are no padding."""
        keys_BxSxH, states, contexts = self.key(source_BxSxD), [], []
        rows_B = torch.arange(len(source_BxSxD), device=source_BxSxD.device)
        s_BxH = self.start(source_BxSxD)[rows_B, is_seen_BxS.int().argmax(-1)].tanh()
        for input_BxG in self.input(x_BxLxD).unbind(1):
            energy_BxS = (((s_BxH @ self.query)[:, None] + keys_BxSxH).tanh() @ self.score)[..., 0]
            weights_BxS = energy_BxS.masked_fill(~is_seen_BxS, -torch.inf).softmax(-1)
            contexts.append((weights_BxS[:, None] @ source_BxSxD)[:, 0])
            input_BxG = input_BxG + contexts[-1] @ self.context
            s_BxH, _ = step_cell("gru", input_BxG, s_BxH @ self.kernel + self.bias, s_BxH, None)
            states.append(s_BxH)
        read_BxLxE = torch.cat([torch.stack(states, 1), torch.stack(contexts, 1), x_BxLxD], -1)
        return F.dropout(self.readout(read_BxLxE).tanh(), self.model.dropout, self.training)


class SourceEncoder(Encoder):
    """The encoder of the source, which sees both sides; generate() calls it."""

    main_input_name = "input_ids"

    def __init__(self, model, embed):
        super().__init__(model)
        self.embed = embed  # of the whole model, whose embeddings both sides share

    def forward(self, input_ids, attention_mask=None, **kwargs):
        segments_BxS = make_segments(input_ids, attention_mask)
        x_BxSxD = self.embed(input_ids, count_positions(segments_BxS), None)
        return outputs.BaseModelOutput(super().forward(x_BxSxD, segments_BxS, False)[-1])


def make_segments(input_ids, attention_mask):
    """segments_BxL: 0 on padding, else 1."""
    return torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()


class MLMForSeq2SeqLM(MLMForMaskedLM, GenerationMixin):
    """An encoder of the source, and a decoder of the target, whose states predict the next token."""

    @property
    def is_scaled(self):
        """Whether embeddings are multiplied by the root of their width."""
        return self.fields.positions != "learned"

    def add_encoder(self):
        """Declares the encoder and the decoder."""
        model = self.fields
        self.encoder = SourceEncoder(SimpleNamespace(**vars(model) | {"directionality": "bidirectional"}), self.embed)
        self.decoder = (Decoder if model.family == "transformer" else RecurrentDecoder)(model)

    def add_head(self):
        super().add_head()
        if self.fields.bias != "none":
            self.bias = nn.Parameter(torch.empty(self.config.vocab_size))

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        labels=None,
        **kwargs,
    ):
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        if decoder_input_ids is None:  # the labels, after [CLS]
            before_BxL = F.pad(labels, (1, 0), value=self.config.bos_token_id)[:, :-1]
            decoder_input_ids = before_BxL.masked_fill(before_BxL == -100, self.config.pad_token_id)
        source_BxSxD, segments_BxL = encoder_outputs[0], make_segments(decoder_input_ids, decoder_attention_mask)
        is_seen_BxS = make_segments(source_BxSxD[..., 0], attention_mask).bool()
        x_BxLxD = self.embed(decoder_input_ids, count_positions(segments_BxL), None)
        logits_BxLxV = self.predict_tokens(self.decoder(x_BxLxD, segments_BxL, source_BxSxD, is_seen_BxS))
        loss = None if labels is None else self.compute_loss(logits_BxLxV, labels)
        return outputs.Seq2SeqLMOutput(loss, logits_BxLxV, encoder_last_hidden_state=source_BxSxD)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, encoder_outputs=None, **kwargs):
        source = {"attention_mask": attention_mask, "encoder_outputs": encoder_outputs}
        return {"decoder_input_ids": input_ids, **source}  # without a cache, all tokens each time
