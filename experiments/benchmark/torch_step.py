"""A training step in PyTorch: the project's optimiser, clipping and masks around any network and loss."""
import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np
import torch

from mlm.base import config
from mlm.objectives import masking

DEVICE = "cuda" if jax.default_backend() == "gpu" else "cpu"
IGNORED = -100  # the label that PyTorch's cross-entropy passes over


class Arrays(NamedTuple):
    """A masked batch on the peer's device."""

    ids_BxL: torch.Tensor
    labels_BxL: torch.Tensor    # the target where masked, else IGNORED
    places_N: torch.Tensor      # the masked tokens among all B * L
    targets_N: torch.Tensor


def arrays(rows: masking.Masked) -> Arrays:
    shape, used = rows.ids_BxL.shape, rows.weights_BxK > 0
    places_N = (np.arange(shape[0])[:, None] * shape[1] + rows.positions_BxK)[used]
    labels_BxL = np.full(shape, IGNORED, np.int64)
    labels_BxL.reshape(-1)[places_N] = rows.targets_BxK[used]
    made = Arrays(*(torch.from_numpy(np.asarray(x, np.int64)).to(DEVICE)
                    for x in (rows.ids_BxL, labels_BxL, places_N, rows.targets_BxK[used])))
    for of_masked in (made.places_N, made.targets_N):
        torch._dynamo.maybe_mark_dynamic(of_masked, 0)  # batches differ in it: compiled once for all
    return made


def build(network: torch.nn.Module, loss: Callable[[Arrays], torch.Tensor], rows: Iterable[masking.Masked],
          cfg: config.Config, compiled: bool) -> Callable[[], None]:
    """A function that makes one update with the loss and waits for it: AdamW, fused; clipping; autocast."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW([{"params": decayed, "weight_decay": cfg.optim.weight_decay},
                                   {"params": plain, "weight_decay": 0.0}], lr=cfg.optim.learning_rate,
                                  betas=(cfg.optim.b1, cfg.optim.b2), eps=cfg.optim.eps, fused=True)
    network.train()
    forward = torch.compile(loss) if compiled else loss
    turn = itertools.cycle([arrays(batch) for batch in rows])

    def update():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cfg.model.dtype == "bfloat16"):
            value = forward(next(turn))
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), cfg.optim.clip_norm)
        optimiser.step()
        optimiser.zero_grad()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return update


def count(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def fill(parameter: torch.Tensor, value) -> None:
    """Copies an array into a parameter of the same shape."""
    value = torch.from_numpy(np.array(value, np.float32))
    if parameter.shape != value.shape:
        raise ValueError(f"shape {tuple(value.shape)} does not fit a parameter of shape {tuple(parameter.shape)}")
    with torch.no_grad():
        parameter.copy_(value)


def fill_layer(module: torch.nn.Module, params, index: int | None = None) -> None:
    """Copies a dense layer or a layer norm of ours, that of layer `index` where layers are stacked."""
    at = (lambda x: x[index]) if index is not None else (lambda x: x)
    fill(module.weight, at(params["kernel"]).T if "kernel" in params else at(params["scale"]))
    fill(module.bias, at(params["bias"]))
