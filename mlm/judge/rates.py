"""The evaluation of a trained run at further masking rates, on the same held-out rows."""
from mlm import objectives
from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.judge.judged import Part
from mlm.train.run.trained import Trained
from mlm.train.step import evaluation, program, references


def can(cfg: config.Config) -> str:
    return "" if objectives.seen(cfg) == "rest" else f"config.objective is {cfg.objective}, which masks nothing"


def asked(cfg: config.Config, rate: float) -> dict:
    return {"rate": rate, "seed": cfg.eval.seed, "max_rows": cfg.eval.max_rows}


def ask(run: Trained, part: Part, told) -> dict:
    """"rate", and the scores of the evaluation there: one compiled step, made for the highest of config.eval.rates."""
    packed, rate = run.packed(), part.asked["rate"]
    made = program.build(fields.override(run.cfg, {"eval.rate": max(run.cfg.eval.rates)}), packed.about)
    found = {"rate": rate, **measured(fields.override(run.cfg, {"eval.rate": rate}), made, run.state, packed)}
    told()
    return found


def measured(cfg: config.Config, made: program.Program, state, packed: pack.Packed) -> dict:
    """The scores of an evaluation at cfg.eval.rate, by a program with room for it."""
    beside = references.measure(cfg, made, packed)
    columns = beside.add(evaluation.collect(cfg, made, state, packed.validation))
    return evaluation.summary(columns, (*made.objective.scores, *beside.scores))
