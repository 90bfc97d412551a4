"""The speed of matrix products of a Transformer's shapes alone, and the share of it that a training step reaches.

A layer has four products and the head two, each computed three times: forward, for the gradient of the input, and for
that of the weights. The faster of JAX and PyTorch sets the limit for layer and head each. Operands are row-major.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark import mlm_step, peers, side_processes, timing
from mlm.base import config
from mlm.objectives import masking


def list_products(cfg: config.Config) -> dict[str, list[tuple[int, int, int]]]:
    """(rows, inner, columns) of the matrix products of one layer and of the head."""
    T, D, H = mlm_step.count_tokens(cfg), cfg.model.width, cfg.model.mlp_dim
    N = cfg.train.batch_size * masking.count_slots(cfg.mask.max_rate, cfg.pack.seq_len)

    def with_gradients(*dense):
        return [shape for m, k, n in dense for shape in ((m, k, n), (m, n, k), (k, m, n))]

    return {
        "layer": with_gradients((T, D, 3 * D), (T, D, D), (T, D, H), (T, H, D)),
        "head": with_gradients((N, D, D), (N, D, cfg.tokenizer.vocab_size)),
    }


def count_flops(products) -> float:
    return sum(2.0 * m * k * n for m, k, n in products)


def build_jax_side(products, dtype: str, out: str) -> Callable[[], None]:
    dot = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.dtype(out)))
    rng = np.random.default_rng(0)
    operands = [
        tuple(jnp.asarray(rng.standard_normal(shape, np.float32), jnp.dtype(dtype)) for shape in ((m, k), (k, n)))
        for m, k, n in products
    ]
    return lambda: jax.block_until_ready([dot(a, b) for a, b in operands])


def build_torch_side(products, dtype: str) -> Callable[[], None]:
    import torch

    from experiments.benchmark import torch_step

    operands = [
        tuple(torch.randn(shape, device=torch_step.DEVICE).to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
        for m, k, n in products
    ]

    def multiply_all():
        for a, b in operands:
            a @ b
        if torch_step.DEVICE == "cuda":
            torch.cuda.synchronize()

    return multiply_all


def build_sides(
    processes: side_processes.SideProcesses, cfg: config.Config
) -> dict[tuple[str, str], Callable[[], None]]:
    """The products of a step, by part (layer, head) and library, to be timed beside the step."""
    dtype, sides = cfg.model.dtype, {}
    for name, products in list_products(cfg).items():
        for out in dict.fromkeys((dtype, "float32")):
            sides[name, f"JAX ({out} sums)"] = processes.build_side(
                "products by JAX", build_jax_side, products, dtype, out
            )
        if not peers.find_missing("torch"):
            sides[name, "PyTorch"] = processes.build_side("products by PyTorch", build_torch_side, products, dtype)
    return sides


def make_rows(case: str, cfg: config.Config, times: dict) -> Iterator[dict]:
    """The rows of `build_sides`, and of the share of the limit that the step, times["ours"], reaches."""
    products = list_products(cfg)
    limit_R = cfg.model.num_layers * select_fastest(times, "layer") + select_fastest(times, "head")
    total = cfg.model.num_layers * count_flops(products["layer"]) + count_flops(products["head"])
    for name, part_products in products.items():
        jax_R = select_fastest({side: side_R for side, side_R in times.items() if side[1] != "PyTorch"}, name)
        torch_R = times.get((name, "PyTorch"))
        yield timing.make_row(
            f"{case}: products of the {name}",
            "GFLOP/s",
            jax_R,
            torch_R,
            "" if torch_R is None else "PyTorch",
            work=count_flops(part_products) / 1e9,
        )
    if step_flops := mlm_step.count_flops(cfg):
        yield make_share_row(case, step_flops / 1e9 / times["ours"], total / 1e9 / limit_R)


def select_fastest(times: dict, name: str) -> np.ndarray:
    """Seconds in each round of the library that computes the products of `name` fastest in the median."""
    return min((side_R for side, side_R in times.items() if side[0] == name), key=np.median)


def make_share_row(case: str, step_R, limit_R) -> dict:
    """The row of a step's FLOP/s beside its limit; here the ratio is the share of the limit that it reaches."""
    return timing.make_size_row(
        f"{case}: step's FLOPs (ratio: share of the limit)",
        "GFLOP/s",
        np.median(step_R),
        float(np.median(limit_R)),
        "its products alone",
    ) | {"ratio": float(np.median(step_R / limit_R))}
