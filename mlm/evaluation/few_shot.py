"""Few-shot fine-tuning with prompts: a model learns from a few examples per label, written as masked queries (LM-BFF).

The head that predicts masked words scores the labels' verbalizers, so that no parameter is initialised anew (Gao et al.
2021, section 4.1).
"""

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, errors, files, types
from mlm.base.estimates import FRACTION, EvaluationScore, estimate_mean
from mlm.base.types import StaticConfig
from mlm.evaluation import prompts, sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress, get_summary, group_results
from mlm.evaluation.prompts import PromptTask
from mlm.inference import forward_passes
from mlm.inference.forward_passes import MaskedQueries
from mlm.training.run import finetuning_recipe
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import optim, parallel, program, trainable, update

SHOTS, SEEDS = 16, (13, 21, 42, 87, 100)  # examples per label; one sample of them per seed
STEPS_BETWEEN = 100  # two evaluations on the selection sample
FORMAT = 2  # of the results: raise it when their meaning changes
# AdamW as in transformers, without warm-up and weight decay: the defaults of the paper's code.
OPTIM = config.Optim(warmup_fraction=0.0, b2=0.999, eps=1e-8, weight_decay=0.0)
PAPER_RATES = (1e-5, 2e-5, 5e-5)  # of models of its size; small ones try the rates of their fine-tuning


class FewShotGrid(NamedTuple):
    """The trials for each sample; a second sample of the same size selects the best (the paper's appendix C)."""

    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]  # none: by the model's width
    steps: int
    every: int  # steps between evaluations on the selection sample


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    return sentence_scores.get_unsupported_reason(cfg) or (
        "it runs in several processes, not one" if parallel.is_multiprocess() else ""
    )


def read_flags(args: argparse.Namespace):
    """Reads the task; returns the function from a run to its cases."""
    grid = FewShotGrid(args.few_batches, args.few_rates, args.few_steps, min(STEPS_BETWEEN, args.few_steps))
    cases = list_cases(prompts.read_task(args.prompt, args.task_path, args.pattern, args.verbalizers), grid)
    return lambda run: cases


def list_cases(task: PromptTask, grid: FewShotGrid) -> list[EvaluationCase]:
    """A case for each seed. Raises ConfigError for a grid that trains nothing and for too few examples."""
    batches, rates = grid.batch_sizes, grid.learning_rates or PAPER_RATES
    for name, values in (("--few_batches", batches), ("--few_rates", rates)):
        errors.require(len(values) > 0 and min(values) > 0, name, values, "numbers above 0")
    announcement = (
        f"few-shot: {len(SEEDS) * len(batches) * len(rates)} fine-tunings of {grid.steps:,} steps for each run "
        f"({len(SEEDS)} samples, {len(batches)} batch sizes, {len(rates)} learning rates); --few_steps, "
        "--few_batches and --few_rates make fewer"
    )
    zero_shot = prompts.make_zero_shot_case(task)
    cases = []
    for seed in SEEDS:
        train, selection = sample_examples(task.train, len(task.verbalizers), seed)
        inputs = {"train": train, "selection": selection, "seed": seed, "grid": list(grid), "format": FORMAT}
        name = f"{zero_shot.name}/{seed}"
        cases.append(EvaluationCase("few_shot", name, zero_shot.inputs | inputs, zero_shot.metadata, announcement))
    return cases


def sample_examples(examples: list, num_labels: int, seed: int) -> tuple[list, list]:
    """Samples SHOTS examples of each label to train on, and as many to select a trial by.

    The order is that of the paper's code (numpy's legacy generator), so that the same file gives the same examples.
    Raises ConfigError where a label has too few.
    """
    order = list(range(len(examples)))
    np.random.RandomState(seed).shuffle(order)
    examples_by_label: dict[int, list] = {label: [] for label in range(num_labels)}
    for index in order:
        examples_by_label[examples[index][-1]].append(examples[index])
    min_count = min(map(len, examples_by_label.values()))
    expected = f"at least {2 * SHOTS}, half of them to select a trial by"
    errors.require(min_count >= 2 * SHOTS, "examples of the rarest label", min_count, expected)
    train, selection = (
        [example for label_examples in examples_by_label.values() for example in label_examples[start : start + SHOTS]]
        for start in (0, SHOTS)
    )
    return train, selection


def build_objective(verbalizer_C: np.ndarray) -> types.Objective:
    """The cross-entropy of the label over the verbalizers' logits alone. Batches carry label_B and position_B."""

    def loss(params, model, batch, key_B, hparams, *, train, mask_index=0):
        h_BxLxD = model.encode(params["model"], batch.text, key_B=key_B if train else None)[0]
        h_BxD = jnp.take_along_axis(h_BxLxD, batch.labels["position_B"][:, None, None], axis=1)[:, 0]
        log_prob_BxC = jax.nn.log_softmax(model.logits(params["model"], h_BxD)[:, verbalizer_C])
        nats_B = -jnp.take_along_axis(log_prob_BxC, batch.labels["label_B"][:, None], axis=1)[:, 0]
        return types.LossSums({"prompt": nats_B}, {"prompt": jnp.ones_like(nats_B)}, {})

    mask_nothing = lambda text, key_B, hparams: text.ids_BxL < 0  # its own, so that the output layer is trained
    return types.Objective(loss=loss, eval_mask=mask_nothing, scores=())


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """`prompts.evaluate` of the dev split, by the best of the trained models.

    "selected" holds the batch size, learning rate and steps of the trial with the best accuracy on the selection
    sample, and that accuracy; ties go to the higher probability. Raises ConfigError as `prompts.evaluate` does.
    """
    inputs, eval_batch_size = case.inputs, run.cfg.eval.batch_size
    grid = FewShotGrid(*inputs["grid"])
    rates = grid.learning_rates or finetuning_recipe.get_learning_rates(run.cfg.model.width, PAPER_RATES)
    verbalizer_C = prompts.encode_verbalizers(run.tokenizer, inputs["pattern"], inputs["verbalizers"])
    (train, train_label_N, _), (selection, selection_label_N, _), (dev, dev_label_N, truncated) = (
        prompts.read_queries(run, inputs, name) for name in ("train", "selection", "examples")
    )
    params = run.program.partitioner.get_state(run.state).params
    best: tuple = ((-1.0, 0.0),)
    trials = [*itertools.product(grid.batch_sizes, rates)]
    for finished, (batch_size, rate) in enumerate(trials):
        cfg = make_config(run.cfg, batch_size, grid.steps)
        model = objectives.shift_states(cfg, run.program.model)
        static_cfg = program.make_static_config(cfg)
        objective, partitioner, score = compile_steps(static_cfg, model, verbalizer_C.tobytes())
        seed, learning_rate = np.uint32(inputs["seed"]), np.float32(rate)
        hparams = program.make_train_hparams(cfg)._replace(seed=seed, learning_rate=learning_rate)
        state = partitioner.put_state(init_state(static_cfg, objective, params, hparams))
        train_batches = iterate_batches(train, train_label_N, batch_size, grid.steps, inputs["seed"])
        for step, batch in enumerate(train_batches, 1):
            state, _ = partitioner.train_step(state, partitioner.put_batch(batch), hparams)
            if step % grid.every and step < grid.steps:
                continue
            quality = compute_quality(score(state, selection, eval_batch_size), selection_label_N)
            progress((finished + step / grid.steps) / len(trials))
            if quality > best[0]:
                trial = {"batch_size": batch_size, "learning_rate": rate, "steps": step}
                best = (quality, trial, partitioner.get_state(state), partitioner, score)
    (accuracy, _), trial, state, partitioner, score = best
    predicted_N = score(partitioner.put_state(state), dev, eval_batch_size).argmax(-1)
    return {
        "examples": len(dev_label_N),
        "truncated": truncated,
        "seed": inputs["seed"],
        "trials": len(trials),
        "selected": trial | {"accuracy": accuracy},
        **prompts.compute_scores(predicted_N, dev_label_N, inputs),
    }


def make_config(cfg: config.Config, batch_size: int, steps: int) -> config.Config:
    """The config of a trial: the run's model, trained in a way that owes nothing to how the run was trained."""
    train = config.Train(steps=steps, batch_size=batch_size)
    return dataclasses.replace(cfg, optim=OPTIM, train=train, init=config.Init(), finetune=config.Finetune())


@functools.lru_cache(maxsize=8)  # all samples share the compiled functions
def compile_steps(cfg: StaticConfig, model: types.Model, verbalizers: bytes) -> tuple:
    """The objective, its steps on one device, and a function (state, queries, batch_size) -> log_prob_NxC."""
    objective = build_objective(np.frombuffer(verbalizers, np.int32))
    partitioner = parallel.build_single_device(functools.partial(update.train_step, cfg, model, objective))

    def score(state, queries, batch_size):
        score_batch = forward_passes.make_scorer(
            model, partitioner, state, prompts.compute_label_log_probs, verbalizers
        )
        return prompts.score_queries(score_batch, queries, batch_size)

    return objective, partitioner, score


def init_state(
    cfg: StaticConfig, objective: types.Objective, params: types.Params, hparams: types.TracedHparams
) -> types.TrainState:
    """A state at step 0 with a run's parameters (numpy), without those of its objective."""
    params = {"model": params["model"], "objective": {}}
    trainable_params = trainable.select_trainable(params, trainable.make_freeze_rule(cfg, objective))
    opt_state = optim.build_optimizer(cfg, hparams).init(trainable_params)
    return types.TrainState(np.int32(0), params, opt_state)


def iterate_batches(train: MaskedQueries, label_N, batch_size: int, num_steps: int, seed: int) -> Iterator[types.Batch]:
    """Batches of the examples, in a new order for every epoch."""
    rng = np.random.default_rng(seed)
    tokens = types.Tokens(*map(np.asarray, forward_passes.make_tokens(train.ids_BxL)))
    indices = itertools.chain.from_iterable(rng.permutation(len(label_N)) for _ in itertools.count())
    for _ in range(num_steps):
        index_B = np.fromiter(itertools.islice(indices, batch_size), int, batch_size)
        labels = {"position_B": train.position_B[index_B], "label_B": label_N[index_B]}
        yield types.Batch(types.Tokens(*(x[index_B] for x in tokens)), labels, np.arange(batch_size, dtype=np.int32))


def compute_quality(log_prob_NxC, label_N) -> tuple[float, float]:
    """The accuracy, and the mean log-probability of the correct label among the labels."""
    log_prob_NxC = log_prob_NxC - np.logaddexp.reduce(log_prob_NxC, axis=-1, keepdims=True)
    correct_N = log_prob_NxC.argmax(-1) == label_N
    return float(correct_N.mean()), float(log_prob_NxC[np.arange(len(label_N)), label_N].mean())


def summarize(results: Mapping[str, dict]) -> dict:
    """The mean accuracy of each task and prompt over the samples, with the SHA-256 of all inputs.

    Three or more samples also give its 95% interval ("_low", "_high").
    """
    summary = {}
    for key, results_by_seed in group_results(dict(sorted(results.items()))).items():
        samples = [*results_by_seed.values()]
        mean, low, high = estimate_mean((sample["accuracy"] for sample in samples), FRACTION)
        summary[key] = {
            "task": samples[0]["task"],
            "samples": len(samples),
            "accuracy": mean,
            "accuracy_low": low,
            "accuracy_high": high,
            "sha256": files.json_sha256([sample["sha256"] for sample in samples]),
        }
    return summary


def list_scores(contents: Mapping[str, Any]) -> Iterator[EvaluationScore]:
    """The mean accuracy of each task over samples of training examples."""
    for summary in get_summary(contents, "few_shot").values():
        yield EvaluationScore(
            prompts.make_metric("few_shot", "few-shot", summary),
            100 * summary["accuracy"],
            note=f"mean of {summary['samples']} samples of training examples",
        )
