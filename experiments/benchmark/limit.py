"""The device's own rate of matrix products at a Transformer's shapes, and the share of it that its step reaches.

The products of a step are a layer's four and the head's two, each three times: forward, and the gradients by its input
and by its weights. All operands lie row by row, and the faster of JAX and PyTorch sets the limit at each of the two.
"""
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark import apart, ours, peers, timing
from mlm.base import config
from mlm.objectives import masking


def shapes(cfg: config.Config) -> dict[str, list[tuple[int, int, int]]]:
    """(rows, inner, columns) of the matrix products of one layer and of the head."""
    T, D, H = ours.tokens(cfg), cfg.model.width, cfg.model.mlp_dim
    N = cfg.train.batch_size * masking.slots(cfg.mask.max_rate, cfg.pack.seq_len)

    def with_gradients(*dense):
        return [shape for m, k, n in dense for shape in ((m, k, n), (m, n, k), (k, m, n))]

    return {"layer": with_gradients((T, D, 3 * D), (T, D, D), (T, D, H), (T, H, D)),
            "head": with_gradients((N, D, D), (N, D, cfg.tokenizer.vocab_size))}


def work(products) -> float:
    return sum(2.0 * m * k * n for m, k, n in products)


def jax_side(products, dtype: str, out: str) -> Callable[[], None]:
    dot = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.dtype(out)))
    rng = np.random.default_rng(0)
    operands = [tuple(jnp.asarray(rng.standard_normal(shape, np.float32), jnp.dtype(dtype))
                      for shape in ((m, k), (k, n))) for m, k, n in products]
    return lambda: jax.block_until_ready([dot(a, b) for a, b in operands])


def torch_side(products, dtype: str) -> Callable[[], None]:
    import torch

    from experiments.benchmark import torch_step

    operands = [tuple(torch.randn(shape, device=torch_step.DEVICE).to(getattr(torch, dtype))
                      for shape in ((m, k), (k, n))) for m, k, n in products]

    def products_of_all():
        for a, b in operands:
            a @ b
        if torch_step.DEVICE == "cuda":
            torch.cuda.synchronize()

    return products_of_all


def sides(processes: apart.Processes, cfg: config.Config) -> dict[tuple[str, str], Callable[[], None]]:
    """The products of cfg's step by what they are of and by who makes them, to be timed beside the step."""
    dtype, found = cfg.model.dtype, {}
    for name, of_name in shapes(cfg).items():
        for out in dict.fromkeys((dtype, "float32")):
            found[name, f"JAX ({out} sums)"] = processes.side("products by JAX", jax_side, of_name, dtype, out)
        if not peers.absent("torch"):
            found[name, "PyTorch"] = processes.side("products by PyTorch", torch_side, of_name, dtype)
    return found


def rows(case: str, cfg: config.Config, times: dict) -> Iterator[dict]:
    """The rows of `sides`, and of the share of the limit that the step, times["ours"], reaches."""
    products = shapes(cfg)
    limit_R = cfg.model.num_layers * fastest(times, "layer") + fastest(times, "head")
    total = cfg.model.num_layers * work(products["layer"]) + work(products["head"])
    for name, of_name in products.items():
        of_jax = fastest({side: side_R for side, side_R in times.items() if side[1] != "PyTorch"}, name)
        of_torch = times.get((name, "PyTorch"))
        yield timing.row(f"{case}: products of the {name}", "GFLOP/s", of_jax, of_torch,
                         "" if of_torch is None else "PyTorch", work=work(of_name) / 1e9)
    if counted := ours.operations(cfg):
        yield reached(case, counted / 1e9 / times["ours"], total / 1e9 / limit_R)


def fastest(times: dict, name: str) -> np.ndarray:
    """Seconds, round by round, of the way that is fastest in the median to make the products of `name`."""
    return min((side_R for side, side_R in times.items() if side[0] == name), key=np.median)


def reached(case: str, step_R, limit_R) -> dict:
    """The row of a step's rate beside its limit; here the ratio is the share of the limit that is reached."""
    return timing.size_row(f"{case}: step's FLOPs (ratio: share of the limit)", "GFLOP/s",
                           np.median(step_R), float(np.median(limit_R)), "its products alone") \
        | {"ratio": float(np.median(step_R / limit_R))}
