"""Pseudo-log-likelihoods of a case's sentences, which are its inputs, and their pseudo-perplexity."""

from mlm import objectives
from mlm.base import config, types
from mlm.evaluation.evaluations import EvaluationCase, ReportProgress
from mlm.inference import masked_queries, pseudo_likelihood
from mlm.inference.pseudo_likelihood import SentenceScores
from mlm.training.run.trained_run import TrainedRun


def get_unsupported_reason(cfg: config.Config) -> str:
    """Why a run of this config has no such evaluation; empty if it has one."""
    if objectives.get_visibility(cfg) == types.Visibility.UNMASKED:
        return ""
    return f"config.objective is {cfg.objective}, which masks nothing"


def count_units(run: TrainedRun, case: EvaluationCase) -> int:
    """The number of batches."""
    queries = pseudo_likelihood.build_queries(run.tokenizer, case.inputs, run.cfg.pack.seq_len)
    return len(pseudo_likelihood.plan_batches(queries, run.cfg.eval.batch_size))


def score_case(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> SentenceScores:
    """The pseudo-log-likelihoods of a case's sentences; each token is masked and predicted."""
    model = objectives.shift_states(run.cfg, run.program.model)
    score_batch = masked_queries.make_scorer(model, run.program.partitioner, run.state)

    def score(queries):
        log_prob_B = score_batch(queries)
        progress()
        return log_prob_B

    queries = pseudo_likelihood.build_queries(run.tokenizer, case.inputs, run.cfg.pack.seq_len)
    return pseudo_likelihood.score_sentences(score, queries, run.cfg.eval.batch_size)


def evaluate(run: TrainedRun, case: EvaluationCase, progress: ReportProgress) -> dict:
    """The pseudo-perplexity of a case's sentences."""
    return pseudo_likelihood.compute_pseudo_perplexity(score_case(run, case, progress))
