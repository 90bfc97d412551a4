"""The evaluation of a trained run at further masking rates, on the same held-out rows."""
from mlm import objectives
from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.evaluation.evaluations import EvaluationCase
from mlm.train.run.trained_run import Trained
from mlm.train.step import evaluation, program, references


def can(cfg: config.Config) -> str:
    return "" if objectives.seen(cfg) == "rest" else f"config.objective is {cfg.objective}, which masks nothing"


def asked(cfg: config.Config, rate: float) -> dict:
    return {"rate": rate, "seed": cfg.eval.mask_seed, "max_rows": cfg.eval.max_examples}


def ask(run: Trained, part: EvaluationCase, told) -> dict:
    """ "rate", and the scores of the evaluation there: one compiled step, made for the highest of config.eval.mask_rates."""
    packed, rate = run.packed(), part.asked["rate"]
    made = program.build(fields.override(run.cfg, {"eval.mask_rate": max(run.cfg.eval.mask_rates)}), packed.about)
    found = {"rate": rate, **measured(fields.override(run.cfg, {"eval.mask_rate": rate}), made, run.state, packed)}
    told()
    return found


def measured(cfg: config.Config, made: program.Program, state, packed: pack.Packed) -> dict:
    """The scores of an evaluation at cfg.eval.mask_rate, by a program with room for it."""
    beside = references.measure(cfg, made, packed)
    columns = beside.add(evaluation.collect(cfg, made, state, packed.validation))
    return evaluation.summary(columns, (*made.objective.scores, *beside.scores))
