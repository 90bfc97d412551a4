"""The models of mlm in torch: `AutoModel...from_pretrained(FOLDER, trust_remote_code=True)` runs this file.

`mlm export` writes it beside config.json, whose entry "config" has mlm's fields by name, and model.safetensors, whose
tensors have the names of the parameters here and in the files that it imports.

Letters in array names: B examples, L tokens, D width, V vocabulary.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers import modeling_outputs as outputs

from .encoders_mlm import Encoder
from .layers_mlm import ACTIVATIONS, Dense, Norm, find_entry

MASKED = -1e4  # the logit of what is no answer, in any float type
POOLERS = {"bert": torch.tanh, "electra": F.gelu, "distilbert": F.relu}  # the activation, by finetune.pooler
OUTPUT_LAYER = (r"^(transform|transform_norm|output)\.", r"^bias$")  # its parameters, which not every class has


class MLMConfig(PretrainedConfig):
    """config.json; `config` has mlm's fields by name."""

    model_type = "mlm"

    @property
    def model_fields(self) -> SimpleNamespace:
        """The fields of the model, without their prefix."""
        fields = {name: value for name, value in self.config.items() if name.startswith("model.")}
        model = SimpleNamespace(**{name.removeprefix("model."): value for name, value in fields.items()})
        model.embedding_dim = model.embedding_dim or model.width
        if model.family == "encoder_decoder":  # of its parts
            model.family = "transformer" if model.cell == "transformer" else "rnn"
            model.lm_head, model.embed_norm, model.type_vocab_size = "linear", False, 0
        if model.family != "transformer":
            model.positions = "learned" if model.cell == "fnet" else "none"
        return model


def make_table(entries, width):
    """A table of embeddings, as "embedding"."""
    return nn.ParameterDict({"embedding": torch.empty(entries, width)})


class MLMModel(PreTrainedModel):
    """Embeddings and an encoder, or one of each side; its states are those that `mlm embed` reads."""

    config_class = MLMConfig
    is_left_only = False  # whether a "mixed" model sees the left side alone
    accepts_loss_kwargs = False  # the Trainer's count of labels
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _keys_to_ignore_on_load_unexpected = (*OUTPUT_LAYER, r"^objective\.")

    def __init__(self, config):
        super().__init__(config)
        self.fields = model = config.model_fields
        self.token = make_table(config.vocab_size, model.embedding_dim)
        if model.positions == "learned":
            self.position = make_table(model.max_positions, model.embedding_dim)
        if model.type_vocab_size:
            self.token_type = make_table(model.type_vocab_size, model.embedding_dim)
        self.embed_norm = Norm(model, model.embedding_dim) if model.embed_norm else nn.Identity()
        if model.embedding_dim != model.width:
            self.embed_projection = Dense(model.embedding_dim, model.width, model.bias in ("all", "norms"))
        self.add_encoder()
        num_layers = len(config.feature_layers)  # that a head reads
        self.mixes_layers = config.config.get("finetune.layer_features") in ("sum4", "mix")
        self.num_features = model.width * (2 if model.directionality == "two_stack" else 1)
        self.num_features *= 1 if self.mixes_layers else num_layers
        self.add_head()
        if self.mixes_layers and hasattr(self, "objective"):
            self.objective.mix = nn.ParameterDict({"logits": torch.empty(num_layers), "scale": torch.empty(())})
        self.post_init()

    def add_encoder(self):
        """Declares what stands between the embeddings and the states."""
        model = self.fields
        if model.directionality == "two_stack":
            causal = SimpleNamespace(**vars(model) | {"directionality": "causal"})
            self.left, self.right = Encoder(causal), Encoder(causal)
        else:
            self.body = Encoder(model)

    def add_head(self):
        """Declares what a class has above the states."""

    @property
    def is_scaled(self):
        """Whether embeddings are multiplied by the root of their width."""
        return self.fields.positions == "sinusoidal"

    def _init_weights(self, module):
        std = self.config.config.get("model.init_std") or 0.02
        for name, parameter in module.named_parameters(recurse=False):
            if name in ("scale", "filter_bias"):
                nn.init.constant_(parameter, self.fields.layer_scale if isinstance(module, nn.ParameterDict) else 1)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=std)

    def get_input_embeddings(self):
        return self.token

    def embed(self, input_ids, positions_BxL, token_type_ids):
        """x_BxLxD, the input of the encoder."""
        model, x = self.fields, F.embedding(input_ids, self.token["embedding"])
        width = x.shape[-1]
        if self.is_scaled:
            x = x * width**0.5
        if model.positions == "learned":
            x = x + self.position["embedding"][positions_BxL]
        if model.positions == "sinusoidal":
            angle = positions_BxL[..., None] / 10_000 ** (torch.arange(0, width, 2, device=x.device) / width)
            sinusoids = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]
            x = x + sinusoids.to(x.dtype)
        if model.type_vocab_size:
            types_BxL = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x = x + self.token_type["embedding"][types_BxL]
        x = F.dropout(self.embed_norm(x), model.dropout, self.training)
        return x if model.embedding_dim == model.width else self.embed_projection(x)

    def encode(self, input_ids, attention_mask=None, token_type_ids=None):
        """(states of all layers, segments_BxL: 0 on padding); of two stacks a state has the left and the right one."""
        segments_BxL = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        x_BxLxD = self.embed(input_ids, count_positions(segments_BxL), token_type_ids)
        if self.fields.directionality != "two_stack":
            return self.body(x_BxLxD, segments_BxL, self.is_left_only), segments_BxL
        left = self.left(x_BxLxD, segments_BxL, False)
        right = self.right(x_BxLxD.flip(1), segments_BxL.flip(1), False)
        return [torch.cat([one, other.flip(1)], -1) for one, other in zip(left, right, strict=True)], segments_BxL

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, output_hidden_states=False, **kwargs):
        states, _ = self.encode(input_ids, attention_mask, token_type_ids)
        return outputs.BaseModelOutput(states[-1], tuple(states) if output_hidden_states else None)


def count_positions(segments_BxL):
    """The place of each token among those that are no padding, from 0."""
    return (segments_BxL.cumsum(1) - 1).clamp(min=0) * segments_BxL


class ModelWithHead(MLMModel):
    """A model whose head computes logits from its states."""

    @property
    def num_outputs(self):
        """The logits of a head for labels."""
        return self.config.num_labels

    def forward(
        self, input_ids, attention_mask=None, token_type_ids=None, labels=None, output_hidden_states=False, **kwargs
    ):
        states, segments_BxL = self.encode(input_ids, attention_mask, token_type_ids)
        logits = self.compute_logits(self.read_features(states), segments_BxL)
        loss = None if labels is None else self.compute_loss(logits, labels)
        return self.output_class(loss, logits, hidden_states=tuple(states) if output_hidden_states else None)

    def read_features(self, states):
        """h_BxLxD of the layers that a head reads: beside each other, or their mean with learned weights."""
        h_KxBxLxD = torch.stack([states[k] for k in self.config.feature_layers])
        if not self.mixes_layers:
            return torch.cat([*h_KxBxLxD], -1)
        return self.objective.mix["scale"] * torch.tensordot(self.objective.mix["logits"].softmax(0), h_KxBxLxD, 1)

    def compute_loss(self, logits, labels):
        """Nats for each label that is not -100."""
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


class MLMForMaskedLM(ModelWithHead):
    """The model with its output layer over the vocabulary."""

    output_class = outputs.MaskedLMOutput
    _keys_to_ignore_on_load_unexpected = (r"^objective\.",)

    def add_head(self):
        model, width = self.fields, self.fields.embedding_dim
        if model.lm_head == "bert" or width != model.width:
            self.transform = Dense(model.width, width, model.bias in ("all", "norms"))
        if model.lm_head == "bert":
            self.activation = find_entry(ACTIVATIONS, model, "lm_head_activation", "layers_mlm.py")
            self.transform_norm = Norm(model, width)
        if model.bias == "output" or (model.lm_head == "bert" and model.bias != "none"):
            self.bias = nn.Parameter(torch.empty(self.config.vocab_size))
        if not model.tie_embeddings:
            self.output = make_table(self.config.vocab_size, width)

    def compute_logits(self, h_BxLxD, segments_BxL):
        """logits_BxLxV; in a run of `hybrid` the state before a token predicts it."""
        if self.config.config["objective"] == "hybrid":
            is_first_BxL = count_positions(segments_BxL) == 0
            h_BxLxD = torch.where(is_first_BxL[..., None], h_BxLxD, h_BxLxD.roll(1, 1))
        return self.predict_tokens(h_BxLxD)

    def predict_tokens(self, h_BxLxD):
        """logits_BxLxV of the tokens that states predict."""
        model = self.fields
        if model.lm_head == "bert":
            h_BxLxD = self.transform_norm(self.activation(self.transform(h_BxLxD)))
        elif model.embedding_dim != model.width:
            h_BxLxD = self.transform(h_BxLxD)
        table = self.token if model.tie_embeddings else self.output
        return F.linear(h_BxLxD, table["embedding"], getattr(self, "bias", None))


class MLMForCausalLM(MLMForMaskedLM, GenerationMixin):
    """The same, whose states see the left side and predict the next token."""

    is_left_only = True
    output_class = outputs.CausalLMOutput

    def compute_logits(self, h_BxLxD, segments_BxL):
        return self.predict_tokens(h_BxLxD[..., : self.fields.width])  # of two stacks the left one

    def compute_loss(self, logits, labels):
        return super().compute_loss(logits[:, :-1], labels[:, 1:])

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        return {"input_ids": input_ids, "attention_mask": attention_mask}  # without a cache, all tokens each time


class MLMForTokenClassification(ModelWithHead):
    """The model with a head for a label of each token."""

    output_class = outputs.TokenClassifierOutput
    _keys_to_ignore_on_load_unexpected = OUTPUT_LAYER

    def add_head(self):
        self.objective = Dense(self.num_features, self.num_outputs, True)

    def compute_logits(self, h_BxLxD, segments_BxL):
        """Logits of each token's labels."""
        return self.objective(F.dropout(h_BxLxD, self.fields.dropout, self.training))


class MLMForSequenceClassification(ModelWithHead):
    """The model with a head for a label, or a number, of each text."""

    output_class = outputs.SequenceClassifierOutput
    _keys_to_ignore_on_load_unexpected = OUTPUT_LAYER

    def add_head(self):
        model, width = self.fields, self.num_features
        default = "first" if model.family == "transformer" else "mean"
        default = "last" if model.directionality in ("causal", "two_stack") else default
        self.pooling = self.config.config.get("finetune.pooling", default)  # which a pretrained model lacks
        self.objective = nn.ModuleDict({"label": Dense(width, self.num_outputs, True)})
        if self.pooling != "mean":
            self.objective["pool"] = Dense(width, width, True)

    def compute_logits(self, h_BxLxD, segments_BxL):
        """Logits of each text's labels, of the mean of its states or of a pooler of its first or last state."""
        if self.pooling == "mean":
            weight_BxLx1 = segments_BxL[..., None].to(h_BxLxD.dtype)
            pooled_BxD = (h_BxLxD * weight_BxLx1).sum(1) / weight_BxLx1.sum(1).clamp(min=1)
        else:
            rank_BxL = segments_BxL.cumsum(1) if self.pooling == "last" else segments_BxL  # padding may come first
            rows_B = torch.arange(len(h_BxLxD), device=h_BxLxD.device)
            activate = POOLERS[self.config.config.get("finetune.pooler", "bert")]
            pooled_BxD = activate(self.objective["pool"](h_BxLxD[rows_B, rank_BxL.argmax(1)]))
        return self.objective["label"](F.dropout(pooled_BxD, self.fields.dropout, self.training))

    def compute_loss(self, logits, labels):
        """Nats for each text; the squared error of a number, the only output; of numbers for each label, theirs."""
        if self.num_outputs == 1:
            return F.mse_loss(logits[:, 0].float(), labels.flatten().float())
        if labels.is_floating_point():
            return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
        return super().compute_loss(logits, labels)


class MLMForMultipleChoice(MLMForSequenceClassification):
    """The model with a head for one number of each text, the largest of which chooses: texts are B x choices x L."""

    output_class = outputs.MultipleChoiceModelOutput
    num_outputs = 1

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, **kwargs):
        flat = [None if x is None else x.flatten(0, 1) for x in (input_ids, attention_mask, token_type_ids)]
        output = super().forward(*flat, **kwargs)
        logits = output.logits.view(input_ids.shape[:2])
        if attention_mask is not None:
            logits = logits.masked_fill(attention_mask.sum(-1) == 0, MASKED)
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return self.output_class(loss, logits, output.hidden_states)


class MLMForQuestionAnswering(MLMForTokenClassification):
    """The model with a head for the tokens where an answer starts and ends."""

    num_outputs = 2

    def compute_logits(self, h_BxLxD, segments_BxL):
        """Logits of each token as the start and as the end; none of padding."""
        return super().compute_logits(h_BxLxD, segments_BxL).masked_fill(segments_BxL[..., None] == 0, MASKED)

    def forward(
        self, input_ids, attention_mask=None, token_type_ids=None, start_positions=None, end_positions=None, **kwargs
    ):
        output = super().forward(input_ids, attention_mask, token_type_ids, **kwargs)
        loss, start_BxL, end_BxL = None, *output.logits.unbind(-1)
        if start_positions is not None and end_positions is not None:
            pairs = (start_BxL, start_positions), (end_BxL, end_positions)
            loss = sum(self.compute_loss(logits_BxL, places) for logits_BxL, places in pairs) / 2
        return outputs.QuestionAnsweringModelOutput(loss, start_BxL, end_BxL, output.hidden_states)
