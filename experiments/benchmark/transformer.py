"""Part transformer: a masked-LM step beside Hugging Face's BertForMaskedLM, stock and tuned, and beside its limit.

Forward pass, backward pass, clipping and AdamW; dropout 0.1 (on accelerators none of the attention weights, but in the
last case), vocabulary of 30,522, 15% masked. Only ours samples masks and applies an attention mask: the peer gets
masked examples and no attention mask.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from experiments.benchmark import matmul_limit, mlm_step, peers, side_processes, timing
from mlm.base import config

SECONDS = 12  # of rounds for each case
STOCK = "stock BertForMaskedLM"
TOLERANCE = 1e-4
LIMIT_SIZES = ("mini", "base", "large")  # sizes whose matrix products are timed beside the step


class BenchmarkCase(NamedTuple):
    size: str
    batch_size: int
    seq_len: int
    dtype: str
    attention_dropout: float = 0.1

    def __str__(self) -> str:
        shape = f"{self.size} {self.batch_size} x {self.seq_len} {self.dtype}"
        return shape if self.attention_dropout else f"{shape}, no attention dropout"

    def make_config(self, **fields) -> config.Config:
        """The case's config; fields: changes of config.model."""
        return mlm_step.make_config(
            {
                "model.size": self.size,
                "train.batch_size": self.batch_size,
                "pack.seq_len": self.seq_len,
                "model.dtype": self.dtype,
                "model.attention_dropout": self.attention_dropout,
            }
            | {f"model.{name}": value for name, value in fields.items()}
        )


CASES = {
    "cpu": [
        BenchmarkCase(size, rows, 128, dtype)
        for dtype in ("float32", "bfloat16")
        for size, rows in (("mini", 32), ("small", 32), ("base", 8))
    ],
    "accelerator": [  # all sides of a case share a card of 80 GB
        BenchmarkCase("base", 32, 512, "bfloat16", attention_dropout=0.0),
        BenchmarkCase("large", 16, 512, "bfloat16", attention_dropout=0.0),
        BenchmarkCase("base", 128, 128, "bfloat16", attention_dropout=0.0),
        BenchmarkCase("large", 64, 128, "bfloat16", attention_dropout=0.0),
        BenchmarkCase("base", 32, 512, "bfloat16"),
    ],
}


def list_cases() -> list[BenchmarkCase]:
    return CASES["cpu" if jax.default_backend() == "cpu" else "accelerator"]


def measure() -> Iterator[dict]:
    missing = peers.find_missing("torch", "transformers")
    if missing:
        print(f"the peers are left out: {missing}")
    attention: dict[tuple[str, int], peers.PeerSetting] = {}
    try_compiled: dict[str, bool] = {}
    with side_processes.SideProcesses() as processes:
        if not missing:
            print(
                processes.run(
                    STOCK,
                    check_equal_work,
                    list_cases()[0]._replace(batch_size=2, dtype="float32").make_config(num_layers=2),
                ),
                flush=True,
            )
        for case in list_cases():
            cfg, has_limit = case.make_config(), case.size in LIMIT_SIZES
            kind = case.dtype, case.seq_len
            if not missing and kind not in attention:
                attention[kind] = choose_attention(processes, case)
            has_plain = jax.default_backend() == "cpu" and case.size == list_cases()[0].size  # a GPU lacks the memory
            sides = mlm_step.build_sides(processes, cfg, with_plain=has_plain)
            if not missing:
                sides |= build_peer_sides(processes, case, attention[kind], try_compiled.get(case.dtype, True))
            times = timing.measure_times(
                sides | (matmul_limit.build_sides(processes, cfg) if has_limit else {}), SECONDS
            )
            processes.clear_sides()
            side_times = {name: times[name] for name in sides}
            try_compiled[case.dtype] = peers.is_compiled_fastest(side_times)
            if has_limit:
                yield from ({"part": "limit"} | row for row in matmul_limit.make_rows(str(case), cfg, times))
            yield from timing.make_peer_rows(str(case), "tokens/s", side_times, work=mlm_step.count_tokens(cfg))


def choose_attention(processes: side_processes.SideProcesses, case: BenchmarkCase) -> peers.PeerSetting:
    """PyTorch's faster attention in one layer of the case's width; wider models spend a smaller share on it."""
    from experiments.benchmark import bert

    setting = peers.choose_setting(
        peers.list_settings(attention=("sdpa", "eager")),
        lambda setting: processes.build_side(
            str(setting), bert.build_tuned_step, case.make_config(num_layers=1), setting
        ),
    )
    processes.clear_sides()
    return setting


def build_peer_sides(
    processes: side_processes.SideProcesses, case: BenchmarkCase, setting: peers.PeerSetting, try_compiled: bool
) -> dict[str, Callable]:
    """The tuned peer, not compiled and, if `try_compiled`, compiled; in the first case also the stock peer.

    try_compiled: whether torch.compile was faster for a narrower model; it gains less in a wider one.
    """
    from experiments.benchmark import bert

    cfg = case.make_config()
    sides = peers.build_sides(
        "tuned BertForMaskedLM",
        setting,
        try_compiled,
        lambda setting: processes.build_side(str(setting), bert.build_tuned_step, cfg, setting),
    )
    return sides | ({STOCK: processes.build_side(STOCK, bert.build_stock_step, cfg)} if case == list_cases()[0] else {})


def check_equal_work(cfg: config.Config) -> str:
    """Compares both sides; returns a line about it.

    Raises RuntimeError unless both have the same number of parameters, and equal parameters give equal losses with both
    heads of the peer.
    """
    import torch

    from experiments.benchmark import bert, torch_step
    from mlm.models import lm

    params, network = mlm_step.make_params(cfg), bert.build_network(cfg)
    bert.load_params(network, params)
    count, peer_count = lm.count_parameters(params)["parameters"], torch_step.count_parameters(network)
    with jax.default_matmul_precision("highest"):
        loss, masked_batch = mlm_step.compute_loss(cfg, params, mlm_step.make_batches(cfg)[0])
    arrays = torch_step.make_arrays(masked_batch)
    with torch.no_grad():
        network.eval()
        stock, tuned = float(bert.make_stock_loss(network)(arrays)), float(bert.make_tuned_loss(network)(arrays))
    if count != peer_count or max(abs(stock - loss), abs(tuned - loss)) > TOLERANCE:
        raise RuntimeError(
            f"not the same work: {count:,} parameters and loss {loss:.6f} here, {peer_count:,} and "
            f"{stock:.6f} (stock), {tuned:.6f} (tuned) there"
        )
    return f"{count:,} parameters on both sides; equal parameters give loss {loss:.5f} here, {tuned:.5f} there"
