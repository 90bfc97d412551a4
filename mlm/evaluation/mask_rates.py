"""The scores of a trained run at further masking rates, on the same held-out examples."""

from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.evaluation import sentence_scores
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import program
from mlm.training.validation import references, split_scores

get_unsupported_reason = sentence_scores.get_unsupported_reason


def list_due_cases(cfg: config.Config) -> list[EvaluationCase]:
    """A case for each of config.eval.mask_rates."""
    shared = {"seed": cfg.eval.mask_seed, "max_examples": cfg.eval.max_examples}
    return [EvaluationCase("mask_rates", f"{rate:g}", {"rate": rate} | shared) for rate in cfg.eval.mask_rates]


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The scores at a "rate". All rates share one compiled step, built for the highest of config.eval.mask_rates."""
    packed, rate = run.load_data(), case.inputs["rate"]
    cfg = fields.override(run.cfg, {"eval.mask_rate": max(run.cfg.eval.mask_rates)})
    run_program = program.build_program(cfg, packed.dataset_info)
    cfg = fields.override(run.cfg, {"eval.mask_rate": rate})
    return {"rate": rate, **compute_scores(cfg, run_program, run.state, packed)}


def compute_scores(cfg: config.Config, run_program: program.Program, state, packed: pack.PackedDataset) -> dict:
    """The scores at cfg.eval.mask_rate, by a program that was built for this rate or a higher one."""
    reference_scores = references.compute_references(cfg, run_program, packed)
    columns = reference_scores.add_columns(split_scores.collect_columns(cfg, run_program, state, packed.validation))
    return split_scores.summarize(columns, (*run_program.objective.scores, *reference_scores.scores))
