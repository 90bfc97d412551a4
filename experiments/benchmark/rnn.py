"""Part rnn: a masked-LM step of bidirectional recurrent nets against torch.nn's and against Flax's recurrences.

Two layers with 32 x 128 tokens at width 256 and 16 x 128 at 512; embeddings, residual stream and head are the same on
every side. Rows hold one segment: resetting the state at segments' ends, which ours does, is work that no peer has.
"""
from collections.abc import Callable, Iterator

import jax

from experiments.benchmark import apart, flax_rnn, ours, peers, timing
from mlm.base import config

SECONDS = 10   # of rounds, a case
FLAX = "Flax nn.RNN"
TOLERANCE = 1e-4
CASES = [("lstm", 256, "float32"), ("gru", 256, "float32"), ("elman", 256, "float32"),
         ("lstm", 512, "float32"), ("gru", 512, "float32"), ("elman", 512, "float32"), ("lstm", 512, "bfloat16")]
ROWS = {256: 32, 512: 16}


def recipe(cell: str, width: int, dtype: str, rows: int) -> config.Config:
    return ours.checked({"model.family": "rnn", "model.cell": cell, "model.num_layers": 2, "model.width": width,
                         "model.rnn_dim": width, "model.dtype": dtype, "train.batch_size": rows, "pack.seq_len": 128})


def rows() -> Iterator[dict]:
    why = peers.absent("torch")
    if why:
        print(f"torch.nn is left out: {why}")
    compiling: dict[tuple[str, str], bool] = {}
    with apart.Processes() as processes:
        for cell, width, dtype in CASES:
            cfg = recipe(cell, width, dtype, ROWS[width])
            sides = ours.sides(processes, cfg, plain=width == min(ROWS))
            if not why:
                sides |= torch_sides(processes, cfg, compiling.get((cell, dtype), True))
            sides[FLAX] = processes.side(FLAX, flax_rnn.step, cfg)
            times = timing.measure(sides, SECONDS)
            processes.forget()
            compiling[cell, dtype] = peers.compiled(times)
            yield from timing.against(f"{cell} width {width}, {ROWS[width]} x 128 {dtype}", "tokens/s", times,
                                      work=ours.tokens(cfg))


def torch_sides(processes: apart.Processes, cfg: config.Config, compiling: bool) -> dict[str, Callable]:
    """The peer in PyTorch as it is and, if `compiling`, compiled; after a check, at a cell's first width, that the work
    is equal. In bfloat16 its recurrence has the dtype that is faster."""
    from experiments.benchmark import torch_rnn

    cell, dtype = cfg.model.cell, cfg.model.dtype
    if cfg.model.width == min(ROWS):
        said = processes.run("torch.nn", check, recipe(cell, cfg.model.width, "float32", 2))
        print(f"{cell}: {said}", flush=True)

    def build(setting):
        return processes.side(f"torch.nn ({setting})", torch_rnn.tuned, cfg, setting)

    setting = peers.best(peers.settings(recurrence=("", "float32")), build) if dtype == "bfloat16" else peers.Setting()
    return peers.as_it_is_and_compiled(f"torch.nn.{torch_rnn.CELLS[cell].__name__}", setting, compiling, build)


def check(cfg: config.Config) -> str:
    """Says how equal ours and PyTorch's net are. Raises RuntimeError unless their parameters are as many but for
    PyTorch's second biases, and the same ones give the same loss."""
    import torch

    from experiments.benchmark import torch_rnn, torch_step
    from mlm.models import lm

    params, network = ours.parameters(cfg), torch_rnn.network(cfg)
    torch_rnn.load(network, params)
    count, peer_count = lm.count(params)["parameters"], torch_step.count(network)
    with jax.default_matmul_precision("highest"):
        loss, masked = ours.forward(cfg, params, ours.batches(cfg)[0])
    with torch.no_grad():
        peer_loss = float(torch_rnn.loss(network.eval())(torch_step.arrays(masked)))
    more = torch_rnn.second_biases(cfg)
    if count + more != peer_count or abs(loss - peer_loss) > TOLERANCE:
        raise RuntimeError(f"not the same work: {count:,} parameters and loss {loss:.6f} here, {peer_count:,} and "
                           f"{peer_loss:.6f} there")
    return (f"{count:,} parameters, torch.nn has {more:,} more (a second bias a gate); the same ones give loss "
            f"{loss:.5f} here, {peer_loss:.5f} there")
