"""Few-shot by cloze: a model goes on learning from a few examples a label, told by their verbalisers (LM-BFF).

The head that predicts masked words scores them, so that nothing is drawn anew (Gao et al. 2021, section 4.1).
"""
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mlm import objectives
from mlm.base import config, errors, fields, types
from mlm.base.estimates import SHARE, estimate
from mlm.evaluation import prompts
from mlm.evaluation.evaluations import EvaluationCase
from mlm.evaluation.prompts import Task
from mlm.inference import masked_queries, pseudo_likelihood
from mlm.inference.masked_queries import Cloze
from mlm.train.run.trained_run import Trained
from mlm.train.step import parallel, program, trainable, update

SHOTS, SEEDS = 16, (13, 21, 42, 87, 100)  # examples a label; draws of them
FORMAT = 1                                # of the answers: a change of what they mean must change this number
# AdamW as transformers has it, no warm-up, no decay of weights: the defaults of the paper's code.
RECIPE = {"optim.schedule": "linear", "optim.warmup_fraction": 0.0, "optim.final_lr_fraction": 0.0, "optim.b1": 0.9,
          "optim.b2": 0.999, "optim.eps": 1e-8, "optim.weight_decay": 0.0, "optim.clip_norm": 1.0,
          "train.grad_accum_steps": 1, "finetune.trainable_layers": -1, "finetune.layerwise_lr_decay": 1.0}


class Grid(NamedTuple):
    """What is tried for each draw, of which other examples, as many, choose: the paper's, appendix C."""

    batches: tuple[int, ...] = (2, 4, 8)
    rates: tuple[float, ...] = (1e-5, 2e-5, 5e-5)
    steps: int = 1000
    every: int = 100   # steps from one look at the examples that choose to the next


def can(cfg: config.Config) -> str:
    return pseudo_likelihood.can(cfg) or ("it runs in several processes, not one" if parallel.is_multiprocess() else "")


def parts(task: Task, grid: Grid) -> list[EvaluationCase]:
    """What is asked, a part a draw. Raises ConfigError for a grid that trains nothing, and too few examples."""
    for name, values in (("--few_batches", grid.batches), ("--few_rates", grid.rates)):
        errors.require(len(values) > 0 and min(values) > 0, name, values, "numbers above 0")
    one = prompts.zero_shot(task)
    made = []
    for seed in SEEDS:
        train, choose = draw(task.train, len(task.prompt.verbalisers), seed)
        asked = one.asked | {"train": train, "choose": choose, "seed": seed, "grid": list(grid), "format": FORMAT}
        made.append(EvaluationCase("few_shot", f"{one.name}/{seed}", asked, one.about))
    return made


def draw(examples: list, labels: int, seed: int) -> tuple[list, list]:
    """The examples to learn from and, as many, those to choose by: SHOTS of each label in a shuffled order, and the
    next. Shuffled as the paper's code does, by numpy's old generator, so that the same file gives the same examples.
    Raises ConfigError where a label has too few.
    """
    order = list(range(len(examples)))
    np.random.RandomState(seed).shuffle(order)
    of_label: dict[int, list] = {number: [] for number in range(labels)}
    for place in order:
        of_label[examples[place][-1]].append(examples[place])
    least = min(map(len, of_label.values()))
    errors.require(least >= 2 * SHOTS, "examples of the rarest label", least,
                   f"at least {2 * SHOTS}, half to choose by")
    first, second = ([one for every in of_label.values() for one in every[start:start + SHOTS]]
                     for start in (0, SHOTS))
    return first, second


def objective(verbaliser_C: np.ndarray) -> types.Objective:
    """The cross-entropy of the right label, by the verbalisers' logits alone; rows bring label_B and place_B."""
    def loss(params, model, batch, key_B, knobs, *, train, view=0):
        h_BxLxD = model.encode(params["model"], batch.text, key_B=key_B if train else None)[0]
        h_BxD = jnp.take_along_axis(h_BxLxD, batch.labels["place_B"][:, None, None], axis=1)[:, 0]
        log_prob_BxC = jax.nn.log_softmax(model.logits(params["model"], h_BxD)[:, verbaliser_C])
        nats_B = -jnp.take_along_axis(log_prob_BxC, batch.labels["label_B"][:, None], axis=1)[:, 0]
        return types.LossSums({"prompt": nats_B}, {"prompt": jnp.ones_like(nats_B)}, {})

    return types.Objective(init=lambda key, model: {}, loss=loss, asked=None, scores=())


def ask(run: Trained, part: EvaluationCase, told: Callable) -> dict:
    """`prompts.ask` of dev, after learning from SHOTS examples a label by the trial that SHOTS others choose.

    "chosen": its batch, learning rate and steps, and the accuracy on those others, on which ties go to the higher
    probability. Raises ConfigError as `prompts.ask` does.
    """
    said, size = part.asked, run.cfg.eval.batch_size
    grid, verbaliser_C = Grid(*said["grid"]), prompts.entries(run.tokenizer, said["verbalisers"])
    (train, _), (choose, _), (dev, cut) = (
        prompts.rows(run.tokenizer, said["pattern"], said[name], run.cfg.pack.seq_len)
        for name in ("train", "choose", "examples"))
    train_N, choose_N, dev_N = (np.array([number for *_, number in said[name]], np.int32)
                                for name in ("train", "choose", "examples"))
    params = run.program.run.get_state(run.state).params
    best: tuple = ((-1.0, 0.0),)
    for batch in grid.batches:
        cfg = fields.override(run.cfg, RECIPE | {"train.batch_size": batch, "train.steps": grid.steps})
        goal, steps, score = compiled(cfg, objectives.telling(cfg, run.program.model), verbaliser_C.tobytes())
        for rate in grid.rates:
            knobs = program.knobs(cfg)._replace(seed=np.uint32(said["seed"]), learning_rate=np.float32(rate))
            state = steps.put_state(begin(cfg, goal, params, knobs))
            for step, given in enumerate(batches(train, train_N, batch, grid.steps, said["seed"]), 1):
                state, _ = steps.train_step(state, steps.put_batch(given), knobs)
                if step % grid.every and step < grid.steps:
                    continue
                found = quality(score(state, choose, size), choose_N)
                told()
                if found > best[0]:
                    best = (found, {"batch": batch, "rate": rate, "steps": step}, steps.get_state(state), steps, score)
    (accuracy, _), chosen, state, steps, score = best
    predicted_N = score(steps.put_state(state), dev, size).argmax(-1)
    return {"examples": len(dev_N), "cut": cut, "seed": said["seed"], "trials": len(grid.batches) * len(grid.rates),
            "chosen": chosen | {"accuracy": accuracy}, **prompts.judged(predicted_N, dev_N, said)}


@functools.lru_cache(maxsize=8)  # all draws share what is compiled
def compiled(cfg: config.Config, model: types.Model, verbalisers: bytes) -> tuple:
    """The objective, the steps of one device, and (state, clozes, rows of a batch) -> log_prob_NxC there."""
    goal = objective(np.frombuffer(verbalisers, np.int32))
    steps = parallel.one_device(functools.partial(update.train_step, cfg, model, goal))
    answer = steps.per_row(prompts.by_label, model, verbalisers)

    def score(state, asked, size):
        return prompts.answered(lambda one: answer(state, steps.put_batch(one), None), asked, size, lambda: None)

    return goal, steps, score


def begin(
    cfg: config.Config, goal: types.Objective, params: types.Params, knobs: types.TracedHparams
) -> types.TrainState:
    """A state at step 0 with a run's parameters (numpy), without those of its objective."""
    params = {"model": params["model"], "objective": {}}
    part = trainable.moving(params, update.frozen(cfg, goal))
    return types.TrainState(np.int32(0), params, update.transform(cfg, part, knobs).init(part))


def batches(train: Cloze, label_N, size: int, steps: int, seed: int) -> Iterator[types.Batch]:
    """So many batches of the examples, which every pass takes in a new order."""
    draws, text = np.random.default_rng(seed), types.Tokens(*map(np.asarray, masked_queries.text(train.ids_BxL)))
    places = itertools.chain.from_iterable(draws.permutation(len(label_N)) for _ in itertools.count())
    for _ in range(steps):
        rows_B = np.fromiter(itertools.islice(places, size), int, size)
        labels = {"place_B": train.place_B[rows_B], "label_B": label_N[rows_B]}
        yield types.Batch(types.Tokens(*(x[rows_B] for x in text)), labels, np.arange(size, dtype=np.int32))


def quality(log_prob_NxC, label_N) -> tuple[float, float]:
    """Accuracy, and the mean log-probability of the right label among the labels."""
    log_prob_NxC = log_prob_NxC - np.logaddexp.reduce(log_prob_NxC, axis=-1, keepdims=True)
    right_N = log_prob_NxC.argmax(-1) == label_N
    return float(right_N.mean()), float(log_prob_NxC[np.arange(len(label_N)), label_N].mean())


def work(run: Trained, part: EvaluationCase) -> int:
    """Looks at the examples that choose."""
    grid = Grid(*part.asked["grid"])
    return len(grid.batches) * len(grid.rates) * -(-grid.steps // grid.every)


def summary(answers: Mapping[str, dict]) -> dict:
    """The accuracy of each task and prompt over the draws, with its 95% interval ("_low", "_high") where three or more
    give one, and the SHA-256 of what was asked.
    """
    found: dict[str, list[dict]] = {}
    for name, answer in sorted(answers.items()):
        found.setdefault(name.partition("/")[0], []).append(answer)
    made = {}
    for key, draws in found.items():
        mean, low, high = estimate((one["accuracy"] for one in draws), SHARE)
        asked = hashlib.sha256(json.dumps([one["sha256"] for one in draws]).encode()).hexdigest()
        made[key] = {"task": draws[0]["task"], "draws": len(draws), "accuracy": mean, "accuracy_low": low,
                     "accuracy_high": high, "sha256": asked}
    return made
