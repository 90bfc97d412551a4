"""The Transformer's peer: Hugging Face's BertForMaskedLM, as it comes and as an expert would run it."""
import itertools
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForMaskedLM

from experiments.benchmark import ours, torch_step
from experiments.benchmark.peers import Setting
from mlm.base import config


def network(cfg: config.Config, attention: str | None = None) -> BertForMaskedLM:
    """The network of cfg's shape; attention None: the implementation that the library chooses itself."""
    model = cfg.model
    shape = BertConfig(
        vocab_size=cfg.tokenizer.vocab_size, hidden_size=model.width, num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads, intermediate_size=model.mlp_dim, type_vocab_size=model.type_vocab_size,
        max_position_embeddings=model.max_positions, hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.attention_dropout, layer_norm_eps=1e-6)
    if attention:
        shape._attn_implementation = attention
    return BertForMaskedLM(shape).to(torch_step.DEVICE)


def stock_loss(bert: BertForMaskedLM) -> Callable:
    """The library's own loss: logits at every position, of which the masked ones count."""
    return lambda arrays: bert(input_ids=arrays.ids_BxL, labels=arrays.labels_BxL).loss


def tuned_loss(bert: BertForMaskedLM) -> Callable:
    """The same number from logits at the masked positions only."""
    def loss(arrays):
        h_TxD = bert.bert(input_ids=arrays.ids_BxL).last_hidden_state.flatten(0, 1)
        logits_NxV = bert.cls(h_TxD[arrays.places_N])
        return torch.nn.functional.cross_entropy(logits_NxV.float(), arrays.targets_N)

    return loss


def stock(cfg: config.Config) -> Callable[[], None]:
    """The step of transformers' Trainer at its defaults: what most users run."""
    bert = network(cfg)
    return torch_step.build(bert, stock_loss(bert), ours.masked_batches(cfg), cfg, compiled=False)


def tuned(cfg: config.Config, setting: Setting) -> Callable[[], None]:
    bert = network(cfg, setting.attention)
    return torch_step.build(bert, tuned_loss(bert), ours.masked_batches(cfg), cfg, setting.compiled)


def load(bert: BertForMaskedLM, params) -> None:
    """Copies a Transformer's parameters of ours (model.norm_placement = "post") into the peer, all of them."""
    embeddings, head = bert.bert.embeddings, bert.cls.predictions
    torch_step.fill(embeddings.word_embeddings.weight, params["token"]["embedding"])
    torch_step.fill(embeddings.position_embeddings.weight, params["position"]["embedding"])
    torch_step.fill(embeddings.token_type_embeddings.weight, params["type"]["embedding"])
    torch_step.fill_layer(embeddings.LayerNorm, params["embed_norm"])
    stack = params["body"]["stack"]["layers"]["layer"]
    for index, layer in enumerate(bert.bert.encoder.layer):
        attention, width = layer.attention, layer.attention.self.all_head_size
        qkv = stack["attention"]["qkv"]
        for part, module in zip(itertools.count(), (attention.self.query, attention.self.key, attention.self.value)):
            columns = slice(part * width, (part + 1) * width)
            torch_step.fill_layer(module, {"kernel": qkv["kernel"][index][:, columns],
                                           "bias": qkv["bias"][index][columns]})
        torch_step.fill_layer(attention.output.dense, stack["attention"]["out"], index)
        torch_step.fill_layer(attention.output.LayerNorm, stack["attention_norm"], index)
        torch_step.fill_layer(layer.intermediate.dense, stack["mlp"]["up"], index)
        torch_step.fill_layer(layer.output.dense, stack["mlp"]["down"], index)
        torch_step.fill_layer(layer.output.LayerNorm, stack["mlp_norm"], index)
    torch_step.fill_layer(head.transform.dense, params["transform"])
    torch_step.fill_layer(head.transform.LayerNorm, params["transform_norm"])
    torch_step.fill(head.bias, params["bias"])
