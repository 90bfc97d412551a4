"""A function of a trained run's model over its held-out examples, on all devices of all processes."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mlm.base import types
from mlm.data.rows import loader
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel, program


def map_examples(
    run: TrainedRun,
    function: Callable,
    *static_args: Any,
    split: loader.Columns | None = None,
    max_examples: int = 0,
    model: types.Model | None = None,
    state: Any = None,
    gather_params: bool = False,
) -> Any:
    """The outputs for the first examples of a split: a tree of arrays, the examples on their first axis.

    Args:
        run: the run.
        function: (model, *static_args, params, batch, hparams) -> a tree of arrays.
        *static_args: of the function.
        split: columns of examples; None: the run's validation split.
        max_examples: the first so many; 0: all.
        model: in place of the run's.
        state: in place of the run's.
        gather_params: as for `Partitioner.jit_per_example`.
    """
    split, partitioner = run.load_data().validation if split is None else split, run.program.partitioner
    batches = loader.iterate_eval_batches(
        split, batch_size=run.cfg.eval.batch_size, max_rows=max_examples, **parallel.get_process_position()
    )
    run_batch = partitioner.jit_per_example(
        function, model or run.program.model, *static_args, gather_params=gather_params
    )
    hparams, state = program.make_eval_hparams(run.cfg), run.state if state is None else state
    outputs = [run_batch(state, partitioner.put_batch(batch), hparams) for batch in batches]
    count = loader.count_eval_examples(split, max_examples)
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *outputs)
