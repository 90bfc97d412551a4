"""The Transformer's peer: Hugging Face's BertForMaskedLM at its defaults (stock) and at its best settings (tuned)."""

import contextlib
import itertools
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertPreTrainedModel

from experiments.benchmark import mlm_step, torch_step
from experiments.benchmark.peers import PeerSetting
from mlm.base import config

FLASH = "flash"  # sdpa by PyTorch's flash kernel alone


def build_network(
    cfg: config.Config, attention: str | None = None, kind: type[BertPreTrainedModel] = BertForMaskedLM
) -> BertPreTrainedModel:
    """The network of the config's shape.

    attention: a name of transformers, or "flash" (PyTorch's own flash kernel); None: the library's default.
    """
    model = cfg.model
    shape = BertConfig(
        vocab_size=cfg.tokenizer.vocab_size,
        hidden_size=model.width,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.mlp_dim,
        type_vocab_size=model.type_vocab_size,
        max_position_embeddings=model.max_positions,
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.attention_dropout,
        layer_norm_eps=1e-6,
    )
    if attention:
        shape._attn_implementation = "sdpa" if attention == FLASH else attention
    return kind(shape).to(torch_step.DEVICE)


def make_stock_loss(bert: BertForMaskedLM) -> Callable:
    """The library's loss: logits at every position."""
    return lambda arrays: bert(input_ids=arrays.ids_BxL, labels=arrays.labels_BxL).loss


def make_tuned_loss(bert: BertForMaskedLM) -> Callable:
    """The same loss from logits at the masked positions only."""

    def loss(arrays):
        h_TxD = bert.bert(input_ids=arrays.ids_BxL).last_hidden_state.flatten(0, 1)
        logits_NxV = bert.cls(h_TxD[arrays.places_N])
        return torch.nn.functional.cross_entropy(logits_NxV.float(), arrays.targets_N)

    return loss


def build_stock_step(cfg: config.Config) -> Callable[[], None]:
    """The step of transformers' Trainer at its defaults."""
    bert = build_network(cfg)
    return torch_step.build_step(bert, make_stock_loss(bert), mlm_step.make_masked_batches(cfg), cfg, compiled=False)


def build_tuned_step(cfg: config.Config, setting: PeerSetting) -> Callable[[], None]:
    bert = build_network(cfg, setting.attention)
    return _build_step(bert, make_tuned_loss(bert), cfg, setting)


def build_classifier_step(cfg: config.Config, setting: PeerSetting) -> Callable[[], None]:
    """The step of a classifier with the library's head; cfg: of a masked LM on the same tokens, which gives them."""
    bert = build_network(cfg, setting.attention, BertForSequenceClassification)
    return _build_step(
        bert,
        lambda arrays: bert(input_ids=arrays.ids_BxL, labels=mlm_step.make_labels(arrays.ids_BxL)).loss,
        cfg,
        setting,
    )


def _build_step(bert, loss, cfg, setting):
    step = torch_step.build_step(bert, loss, mlm_step.make_masked_batches(cfg), cfg, setting.compiled)

    def update():
        is_flash = setting.attention == FLASH
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if is_flash else contextlib.nullcontext():
            step()

    return update


def load_params(bert: BertForMaskedLM, params) -> None:
    """Copies all parameters of our Transformer (model.norm_placement=post) into the peer."""
    embeddings, head = bert.bert.embeddings, bert.cls.predictions
    torch_step.copy_parameter(embeddings.word_embeddings.weight, params["token"]["embedding"])
    torch_step.copy_parameter(embeddings.position_embeddings.weight, params["position"]["embedding"])
    torch_step.copy_parameter(embeddings.token_type_embeddings.weight, params["type"]["embedding"])
    torch_step.copy_layer(embeddings.LayerNorm, params["embed_norm"])
    stack = params["body"]["stack"]["layers"]["layer"]
    for index, layer in enumerate(bert.bert.encoder.layer):
        attention, width = layer.attention, layer.attention.self.all_head_size
        qkv = stack["attention"]["qkv"]
        for part, module in zip(itertools.count(), (attention.self.query, attention.self.key, attention.self.value)):
            columns = slice(part * width, (part + 1) * width)
            torch_step.copy_layer(
                module, {"kernel": qkv["kernel"][index][:, columns], "bias": qkv["bias"][index][columns]}
            )
        torch_step.copy_layer(attention.output.dense, stack["attention"]["out"], index)
        torch_step.copy_layer(attention.output.LayerNorm, stack["attention_norm"], index)
        torch_step.copy_layer(layer.intermediate.dense, stack["mlp"]["up"], index)
        torch_step.copy_layer(layer.output.dense, stack["mlp"]["down"], index)
        torch_step.copy_layer(layer.output.LayerNorm, stack["mlp_norm"], index)
    torch_step.copy_layer(head.transform.dense, params["transform"])
    torch_step.copy_layer(head.transform.LayerNorm, params["transform_norm"])
    torch_step.copy_parameter(head.bias, params["bias"])
