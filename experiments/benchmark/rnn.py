"""Part rnn: a masked-LM step of bidirectional recurrent models, beside the recurrences of torch.nn and of Flax.

Two layers, 32 x 128 tokens at width 256 and 16 x 128 at width 512. Embeddings, residual stream and head are the same on
every side. Only ours does the work of resetting the state between segments, though each example here has one segment.
Then each recurrence and a Transformer of two layers of size mini beside our LSTM, by length, at 8,192 tokens a step.
"""

from collections.abc import Callable, Iterator

import jax

from experiments.benchmark import flax_rnn, mlm_step, peers, side_processes, timing
from mlm.base import config

SECONDS = 10  # of rounds for each case
FLAX = "Flax nn.RNN"
TOLERANCE = 1e-4
CASES = [
    ("lstm", 256, "float32"),
    ("gru", 256, "float32"),
    ("elman", 256, "float32"),
    ("lstm", 512, "float32"),
    ("gru", 512, "float32"),
    ("elman", 512, "float32"),
    ("lstm", 512, "bfloat16"),
]
BATCH_SIZES = {256: 32, 512: 16}
LENGTHS = (128, 512, 2048, 8192)
TOKENS = 8192  # of a step, at each of LENGTHS
MEMBERS = ("lstm", "gru", "mingru", "minlstm", "rglru", "ssd", "transformer")  # the first is the others' peer


def make_config(cell: str, width: int, dtype: str, rows: int) -> config.Config:
    return mlm_step.make_config(
        {
            "model.family": "rnn",
            "model.cell": cell,
            "model.num_layers": 2,
            "model.width": width,
            "model.rnn_dim": width,
            "model.dtype": dtype,
            "train.batch_size": rows,
            "pack.seq_len": 128,
        }
    )


def measure() -> Iterator[dict]:
    missing = peers.find_missing("torch")
    if missing:
        print(f"torch.nn is left out: {missing}")
    try_compiled: dict[tuple[str, str], bool] = {}
    with side_processes.SideProcesses() as processes:
        for cell, width, dtype in CASES:
            cfg = make_config(cell, width, dtype, BATCH_SIZES[width])
            sides = mlm_step.build_sides(processes, cfg, with_plain=width == min(BATCH_SIZES))
            if not missing:
                sides |= build_torch_sides(processes, cfg, try_compiled.get((cell, dtype), True))
            sides[FLAX] = processes.build_side(FLAX, flax_rnn.build_step, cfg)
            times = timing.measure_times(sides, SECONDS)
            processes.clear_sides()
            try_compiled[cell, dtype] = peers.is_compiled_fastest(times)
            yield from timing.make_peer_rows(
                f"{cell} width {width}, {BATCH_SIZES[width]} x 128 {dtype}",
                "tokens/s",
                times,
                work=mlm_step.count_tokens(cfg),
            )

        yield from measure_lengths(processes)


def measure_lengths(processes: side_processes.SideProcesses) -> Iterator[dict]:
    for length in LENGTHS:
        configs = {member: make_length_config(member, length) for member in MEMBERS}
        sides = {name: processes.build_side(name, mlm_step.build_step, cfg) for name, cfg in configs.items()}
        times = timing.measure_times(sides, SECONDS)
        processes.clear_sides()
        peer = MEMBERS[0]
        for name in MEMBERS[1:]:
            case = f"{name} mini, {TOKENS // length} x {length}"
            yield timing.make_row(case, "tokens/s", times[name], times[peer], f"our {peer}", work=TOKENS)


def make_length_config(member: str, length: int) -> config.Config:
    """A small vocabulary, so that the layers take most of the time."""
    own = {"model.family": "rnn", "model.cell": member}
    if member == "transformer":
        own = {"model.positions": "rotary", "model.attention_dropout": 0.0, "model.max_positions": length}
    shape = {"model.size": "mini", "model.num_layers": 2, "train.batch_size": TOKENS // length, "pack.seq_len": length}
    return mlm_step.make_config(own | shape | {"tokenizer.vocab_size": 1000})


def build_torch_sides(
    processes: side_processes.SideProcesses, cfg: config.Config, try_compiled: bool
) -> dict[str, Callable]:
    """PyTorch's sides, not compiled and, if `try_compiled`, compiled.

    Checks at the smallest width of each cell that the work is equal. In bfloat16 the recurrence has its faster dtype.
    """
    from experiments.benchmark import torch_rnn

    cell, dtype = cfg.model.cell, cfg.model.dtype
    if cfg.model.width == min(BATCH_SIZES):
        report = processes.run("torch.nn", check_equal_work, make_config(cell, cfg.model.width, "float32", 2))
        print(f"{cell}: {report}", flush=True)

    def build(setting):
        return processes.build_side(f"torch.nn ({setting})", torch_rnn.build_tuned_step, cfg, setting)

    setting = (
        peers.choose_setting(peers.list_settings(recurrence=("", "float32")), build)
        if dtype == "bfloat16"
        else peers.PeerSetting()
    )
    return peers.build_sides(f"torch.nn.{torch_rnn.CELLS[cell].__name__}", setting, try_compiled, build)


def check_equal_work(cfg: config.Config) -> str:
    """Compares our model with PyTorch's; returns a line about it.

    Raises RuntimeError unless both have the same number of parameters, apart from PyTorch's second biases, and equal
    parameters give equal losses.
    """
    import torch

    from experiments.benchmark import torch_rnn, torch_step
    from mlm.models import lm

    params, network = mlm_step.make_params(cfg), torch_rnn.build_network(cfg)
    torch_rnn.load_params(network, params)
    count, peer_count = lm.count_parameters(params)["parameters"], torch_step.count_parameters(network)
    with jax.default_matmul_precision("highest"):
        loss, masked_batch = mlm_step.compute_loss(cfg, params, mlm_step.make_batches(cfg)[0])
    with torch.no_grad():
        peer_loss = float(torch_rnn.make_loss(network.eval())(torch_step.make_arrays(masked_batch)))
    num_extra = torch_rnn.count_second_biases(cfg)
    if count + num_extra != peer_count or abs(loss - peer_loss) > TOLERANCE:
        raise RuntimeError(
            f"not the same work: {count:,} parameters and loss {loss:.6f} here, {peer_count:,} and "
            f"{peer_loss:.6f} there"
        )
    return (
        f"{count:,} parameters, torch.nn has {num_extra:,} more (a second bias per gate); equal parameters give loss "
        f"{loss:.5f} here, {peer_loss:.5f} there"
    )
