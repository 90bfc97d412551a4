"""A peer of the recurrent models: this project's layers in PyTorch, with torch.nn.RNN, GRU or LSTM."""

import contextlib
from collections.abc import Callable

import torch
from torch import nn

from experiments.benchmark import mlm_step, torch_step
from experiments.benchmark.peers import PeerSetting
from mlm.base import config

CELLS = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Layer(nn.Module):
    """x + project(recurrence(norm(x))) in both directions; the recurrence runs under autocast, or in float32."""

    def __init__(self, model: config.Model, recurrence: str):
        super().__init__()
        self.norm = nn.LayerNorm(model.width, eps=1e-6)
        self.cell = CELLS[model.cell](
            model.width, model.rnn_dim, batch_first=True, bidirectional=model.directionality == "bidirectional"
        )
        self.out = nn.Linear(model.rnn_dim * (1 + self.cell.bidirectional), model.width)
        self.dropout = nn.Dropout(model.dropout)
        self.in_float32 = recurrence == "float32"

    def forward(self, x_BxLxD):
        y_BxLxD = self.norm(x_BxLxD)
        with torch.autocast(torch_step.DEVICE, enabled=False) if self.in_float32 else contextlib.nullcontext():
            y_BxLxH, _ = self.cell(y_BxLxD.float() if self.in_float32 else y_BxLxD)
        return x_BxLxD + self.dropout(self.out(y_BxLxH))


class Network(nn.Module):
    """Embeddings, layers, and BERT's tied output layer at the masked positions."""

    def __init__(self, cfg: config.Config, recurrence: str = ""):
        super().__init__()
        model = cfg.model
        self.token = nn.Embedding(cfg.tokenizer.vocab_size, model.width)
        self.sentence_type = nn.Embedding(model.type_vocab_size, model.width)
        self.embed_norm, self.transform_norm, self.norm = (nn.LayerNorm(model.width, eps=1e-6) for _ in range(3))
        self.dropout = nn.Dropout(model.dropout)
        self.layers = nn.ModuleList(Layer(model, recurrence) for _ in range(model.num_layers))
        self.transform = nn.Linear(model.width, model.width)
        self.bias = nn.Parameter(torch.zeros(cfg.tokenizer.vocab_size))
        for table in (self.token, self.sentence_type):
            nn.init.trunc_normal_(table.weight, std=model.init_std)

    def forward(self, ids_BxL, places_N):
        h_BxLxD = self.dropout(self.embed_norm(self.token(ids_BxL) + self.sentence_type.weight[0]))
        for layer in self.layers:
            h_BxLxD = layer(h_BxLxD)
        h_NxD = self.norm(h_BxLxD).flatten(0, 1)[places_N]
        h_NxD = self.transform_norm(nn.functional.gelu(self.transform(h_NxD)))
        return nn.functional.linear(h_NxD, self.token.weight, self.bias)


def build_network(cfg: config.Config, recurrence: str = "") -> Network:
    return Network(cfg, recurrence).to(torch_step.DEVICE)


def make_loss(net: Network) -> Callable:
    return lambda arrays: nn.functional.cross_entropy(net(arrays.ids_BxL, arrays.places_N).float(), arrays.targets_N)


def build_tuned_step(cfg: config.Config, setting: PeerSetting) -> Callable[[], None]:
    net = build_network(cfg, setting.recurrence)
    return torch_step.build_step(net, make_loss(net), mlm_step.make_masked_batches(cfg), cfg, setting.compiled)


def count_second_biases(cfg: config.Config) -> int:
    """Parameters that only PyTorch has: a second bias in each gate, which is redundant except in the GRU."""
    model = cfg.model
    gates = {"elman": 1, "gru": 0, "lstm": 4}[model.cell]
    return model.num_layers * (1 + (model.directionality == "bidirectional")) * gates * model.rnn_dim


def load_params(net: Network, params) -> None:
    """Copies our parameters into the peer; its second biases become 0, or the constants of our cells."""
    torch_step.copy_parameter(net.token.weight, params["token"]["embedding"])
    torch_step.copy_parameter(net.sentence_type.weight, params["type"]["embedding"])
    torch_step.copy_layer(net.embed_norm, params["embed_norm"])
    torch_step.copy_layer(net.norm, params["body"]["norm"])
    torch_step.copy_layer(net.transform, params["transform"])
    torch_step.copy_layer(net.transform_norm, params["transform_norm"])
    torch_step.copy_parameter(net.bias, params["bias"])
    stack = params["body"]["stack"]["layers"]["layer"]
    for index, layer in enumerate(net.layers):
        torch_step.copy_layer(layer.norm, stack["norm"], index)
        torch_step.copy_layer(layer.out, stack["out"], index)
        for name, suffix in (("forward", "_l0"), ("backward", "_l0_reverse"))[: 1 + layer.cell.bidirectional]:
            torch_step.copy_parameter(
                getattr(layer.cell, f"weight_ih{suffix}"), stack[f"{name}_input"]["kernel"][index].T
            )
            torch_step.copy_parameter(getattr(layer.cell, f"weight_hh{suffix}"), stack[f"{name}_kernel"][index].T)
            torch_step.copy_parameter(getattr(layer.cell, f"bias_ih{suffix}"), stack[f"{name}_input"]["bias"][index])
            second = getattr(layer.cell, f"bias_hh{suffix}")
            with torch.no_grad():
                second.zero_()
            if isinstance(layer.cell, nn.GRU):
                torch_step.copy_parameter(second, stack[f"{name}_bias"][index])
            if isinstance(layer.cell, nn.LSTM):  # our forget gate has a constant bias of 1
                hidden = layer.cell.hidden_size
                with torch.no_grad():
                    second[hidden : 2 * hidden] = 1
