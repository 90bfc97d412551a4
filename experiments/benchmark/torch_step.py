"""A training step in PyTorch with this project's optimizer, clipping and masks, for any network and loss."""

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np
import torch

from mlm.base import config
from mlm.objectives import masking

DEVICE = "cuda" if jax.default_backend() == "gpu" else "cpu"
IGNORED_LABEL = -100  # the label that PyTorch's cross-entropy skips


class Arrays(NamedTuple):
    """A masked batch on the peer's device."""

    ids_BxL: torch.Tensor
    labels_BxL: torch.Tensor  # the target if masked, else IGNORED_LABEL
    places_N: torch.Tensor  # indices of the masked tokens among all B * L
    targets_N: torch.Tensor


def make_arrays(masked_batch: masking.MaskedBatch) -> Arrays:
    shape, used = masked_batch.ids_BxL.shape, masked_batch.weights_BxK > 0
    places_N = (np.arange(shape[0])[:, None] * shape[1] + masked_batch.positions_BxK)[used]
    labels_BxL = np.full(shape, IGNORED_LABEL, np.int64)
    labels_BxL.reshape(-1)[places_N] = masked_batch.targets_BxK[used]
    arrays = Arrays(
        *(
            torch.from_numpy(np.asarray(x, np.int64)).to(DEVICE)
            for x in (masked_batch.ids_BxL, labels_BxL, places_N, masked_batch.targets_BxK[used])
        )
    )
    for x_N in (arrays.places_N, arrays.targets_N):
        torch._dynamo.maybe_mark_dynamic(x_N, 0)  # its length differs between batches: compile once for all
    return arrays


def build_step(
    network: torch.nn.Module,
    loss: Callable[[Arrays], torch.Tensor],
    masked_batches: Iterable[masking.MaskedBatch],
    cfg: config.Config,
    compiled: bool,
) -> Callable[[], None]:
    """A function that makes one update and waits for it: fused AdamW, clipping, autocast."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    not_decayed = [p for p in network.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": cfg.optim.weight_decay}, {"params": not_decayed, "weight_decay": 0.0}],
        lr=cfg.optim.learning_rate,
        betas=(cfg.optim.b1, cfg.optim.b2),
        eps=cfg.optim.eps,
        fused=True,
    )
    network.train()
    forward = torch.compile(loss) if compiled else loss
    batch_cycle = itertools.cycle([make_arrays(batch) for batch in masked_batches])

    def update():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=cfg.model.dtype == "bfloat16"):
            value = forward(next(batch_cycle))
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), cfg.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return update


def count_parameters(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def copy_parameter(parameter: torch.Tensor, value) -> None:
    """Copies an array into a parameter of the same shape."""
    value = torch.from_numpy(np.array(value, np.float32))
    if parameter.shape != value.shape:
        raise ValueError(f"shape {tuple(value.shape)} does not fit a parameter of shape {tuple(parameter.shape)}")
    with torch.no_grad():
        parameter.copy_(value)


def copy_layer(module: torch.nn.Module, params, index: int | None = None) -> None:
    """Copies one of our dense layers or layer norms; index: the layer, if layers are stacked."""
    select = (lambda x: x[index]) if index is not None else (lambda x: x)
    copy_parameter(module.weight, select(params["kernel"]).T if "kernel" in params else select(params["scale"]))
    copy_parameter(module.bias, select(params["bias"]))
