"""What is asked at a run's end: the optimum is told so at every rate and by every probe, an untrained model is not."""

import jax
import numpy as np
import pytest
from small import drawn_config, state_of

from mlm.base import fields, types
from mlm.base.special import MASK
from mlm.data.language import grammar, posterior, probes
from mlm.data.rows import pack
from mlm.evaluation import evaluation_tasks, grammar_probes, mask_rates
from mlm.evaluation.evaluation_tasks import EVALUATIONS
from mlm.evaluation.evaluations import EvaluationCase
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel, program

pytestmark = pytest.mark.slow

RATES = (0.4, 0.8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cfg = drawn_config(
        tmp_path_factory.mktemp("cache"),
        "feedforward",
        "bag",
        eval__mask_rates=RATES,
        eval__mask_rate=0.4,
        eval__batch_size=16,
        model__num_layers=1,
        data__language__validation_documents=40,
    )
    return cfg, pack.load_dataset(cfg)


def optimum(cfg, rows) -> types.Model:
    """The posterior as a model: it says what it makes of the masked words in the rows that it is given."""
    language, pieces = grammar.build_grammar(cfg.data.language), rows.tokenizer.pieces
    entry_W = np.array([pieces.index(word) for word in language.words])

    def encode(params, text, source=None, *, key_B=None):
        ids_BxL = np.asarray(text.ids_BxL)
        hidden_BxL = ids_BxL == MASK
        words_BxL = grammar.convert_ids_to_words(language, pieces, np.where(hidden_BxL, entry_W[0], ids_BxL))
        logits_BxLxV = np.full((*ids_BxL.shape, len(pieces)), -1e9, np.float32)
        row_K, column_K = np.nonzero(hidden_BxL)
        logits_BxLxV[row_K[:, None], column_K[:, None], entry_W] = posterior.compute_log_probs(
            language.hmm, posterior.compute_posterior(language.hmm, words_BxL, hidden_BxL)
        )
        return (jax.numpy.asarray(logits_BxLxV),)

    return types.Model(("bidirectional",), len(pieces), None, encode, lambda params, h: h)


def answer_all(cfg, rows, made, state) -> dict:
    """The answers to all that is due, by question and part."""
    run = TrainedRun(cfg, 0, rows.tokenizer, made, state, "", rows.dataset_info, rows)
    room = fields.override(cfg, {"eval.mask_rate": max(RATES)})
    roomy = program.build_program(room, rows.dataset_info)._replace(model=made.model, partitioner=made.partitioner)
    at = {rate: fields.override(cfg, {"eval.mask_rate": rate}) for rate in cfg.eval.mask_rates}
    found = {
        "mask_rates": {
            f"{rate:g}": {"rate": rate, **mask_rates.compute_scores(at[rate], roomy, state, rows)}
            for rate in cfg.eval.mask_rates
        }
    }
    for part in evaluation_tasks.list_due_cases(cfg):
        if part.task != "mask_rates":
            found.setdefault(part.task, {})[part.name] = EVALUATIONS[part.task].evaluate(run, part, lambda: None)
    return found


def sum_parts(found) -> float:
    """The sum of the gap's parts."""
    return sum(found["loss_decomposition"]["parts"][name]["excess"] for name in ("kind", "number", "word"))


def test_the_optimum_is_told_so(data, monkeypatch):
    cfg, rows = data
    monkeypatch.setattr(grammar_probes, "MAX_ITEMS", 20)  # of which each stands for some
    one = parallel.build_single_device(
        lambda *arguments: None
    )._replace(  # the posterior is computed on this host: no compiling
        jit_per_example=lambda function, *fixed, gather_params=False: (
            lambda state, *arguments: jax.device_get(function(*fixed, state.params, *arguments))
        ),
        put_batch=lambda batch: batch,
    )
    made = program.build_program(cfg, rows.dataset_info)._replace(model=optimum(cfg, rows), partitioner=one)
    found = answer_all(cfg, rows, made, types.TrainState(0, {"model": None, "objective": {}}, ()))
    assert [at["rate"] for at in found["mask_rates"].values()] == list(RATES)
    for at in found["mask_rates"].values():
        assert at["excess_loss"] == pytest.approx(0, abs=1e-5) and at["realised_rate"] == pytest.approx(
            at["rate"], abs=0.01
        )
    assert sum_parts(found) == pytest.approx(0, abs=1e-5)
    losses = [at["floor"] for at in found["mask_rates"].values()]
    assert losses == sorted(losses) and losses[-1] > losses[0] + 0.5
    for name, bins in (("agreement", probes.DISTANCE_BINS), ("recall", probes.SENTENCE_BINS)):
        judged = found["grammar_probes"][name]
        assert judged["accuracy"] == judged["optimum"] > 0.8
        assert [(part["low"], part["high"]) for part in judged["distance"]] == list(bins)[: len(judged["distance"])]
        assert sum(part["items"] for part in judged["distance"]) == judged["items"] > 40
        assert all(part["accuracy"] == part["optimum"] for part in judged["distance"])
    assert len(found["grammar_probes"]["agreement"]["attractors"]) > 1


def test_an_untrained_model_guesses(data):
    cfg, rows = data
    made = program.build_program(cfg, rows.dataset_info, jax.devices()[:2])
    state = state_of(made.init_state.eval_shape(program.make_train_hparams(cfg)), std=0.02)
    found = answer_all(cfg, rows, made, made.partitioner.put_state(state))
    for at in found["mask_rates"].values():
        assert at["excess_loss"] > 1 and at["loss"] == pytest.approx(np.log(data[1].dataset_info.vocab_size), abs=1)
    assert sum_parts(found) == pytest.approx(found["mask_rates"]["0.4"]["excess_loss"], rel=1e-5)
    assert found["loss_decomposition"]["parts"]["predictions"] == found["mask_rates"]["0.4"]["predictions"]
    agreement = found["grammar_probes"]["agreement"]
    assert abs(agreement["accuracy"] - 0.5) < 0.25 < agreement["optimum"] - 0.5
    assert found["grammar_probes"]["recall"]["accuracy"] < 0.5 * found["grammar_probes"]["recall"]["optimum"]


def test_words_out_of_order_leave_agreement_out():
    due = evaluation_tasks.list_due_cases(drawn_config("cache", data__language__word_order_prob=0.9))
    assert [(part.task, part.name) for part in due] == [("grammar_probes", "recall"), ("loss_decomposition", "parts")]


def test_what_is_asked_at_other_rates_or_of_other_items_is_another_question():
    one = EvaluationCase("mask_rates", "0.3", {"rate": 0.3, "seed": 1})
    other = EvaluationCase("mask_rates", "0.3", {"rate": 0.3, "seed": 2})
    assert one.sha256 != other.sha256
