"""Each objective's gap is that to its own floor, and all that tell whole documents stand in nats per document."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_loss_decomposition import data

from mlm.base import fields, types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP
from mlm.data.language import causal_posterior, diffusion_bound, grammar, posterior
from mlm.evaluation import loss_decomposition
from mlm.training.run import trained_run
from mlm.training.step import program
from mlm.training.validation import floors, references, split_scores

PARTS = ("kind", "number", "word")


class Case(NamedTuple):
    """An objective, how its model sees, and what its states are told by; moved: they stand before what they tell."""

    objective: str
    sees: str
    told: tuple[str, ...]
    moved: int = 0


CASES = [
    Case("causal", "causal", ("left",)),
    Case("causal", "two_stack", ("left", "right")),
    Case("hybrid", "mixed", ("rest", "left"), 1),
    Case("diffusion", "bidirectional", ("rest",)),
    Case("denoising", "causal", ("filled",), 1),
]


def table(ids_NxL, hidden_NxL, ways) -> types.Model:
    """Predicts what its only parameter says for each way, row of the split, and place; of ("row",) the second of its
    ways for rows that see the left alone. It knows a row by its words, and where those are alike by its masks."""
    ids_NxL = jnp.asarray(np.asarray(ids_NxL, np.int32))
    shown_NxL = jnp.where(hidden_NxL, MASK, ids_NxL)

    def encode(params, text, source=None, *, key_B=None, left_B=None):
        words_BxN, all_BxN = ((text.ids_BxL[:, None] == of_NxL).sum(-1) for of_NxL in (ids_NxL, shown_NxL))
        row_B = (words_BxN * 100 + all_BxN).argmax(1)
        at = jnp.stack(jnp.broadcast_arrays(row_B[:, None], jnp.arange(text.ids_BxL.shape[1])), -1)
        every = range(len(ways)) if left_B is None else [1]
        return tuple(jnp.concatenate([at, jnp.full_like(at[..., :1], way)], -1) for way in every)

    return types.Model(
        ways,
        3,
        None,
        encode,
        lambda logits_WxNxLxV, h_BxKx3: logits_WxNxLxV[h_BxKx3[..., 2], h_BxKx3[..., 0], h_BxKx3[..., 1]],
    )


def exact(cfg, rows, language, case, hidden_NxL):
    """The exact logits of each thing that is told, at the place whose state tells each token: logits_WxNxLxV."""
    ids_NxL, most, hmm = rows.validation["ids"], cfg.data.language.max_words, language.hmm
    words_NxL = grammar.convert_ids_to_words(language, rows.tokenizer.pieces, ids_NxL)
    logits_WxNxLxV = np.full((len(case.told), *ids_NxL.shape, rows.dataset_info.vocab_size), -1e9, np.float32)
    words_W = [rows.tokenizer.pieces.index(word) for word in language.words]
    for logits_NxLxV, what in zip(logits_WxNxLxV, case.told, strict=True):
        if what in ("left", "right"):
            known = {
                "left": causal_posterior.compute_causal_posterior,
                "right": causal_posterior.compute_backward_posterior,
            }[what](hmm, words_NxL, most)
            of, entry_W = causal_posterior.add_end_state(hmm), [*words_W, {"left": SEP, "right": CLS}[what]]
            place_K = known.position_K - 1 if what == "left" else ids_NxL.shape[1] - known.position_K
        else:
            see = {"rest": posterior.compute_posterior, "filled": posterior.compute_infilling_posterior}[what]
            known = see(hmm, words_NxL, hidden_NxL)
            of, entry_W, place_K = hmm, words_W, known.position_K - case.moved
        logits_NxLxV[known.example_K[:, None], place_K[:, None], entry_W] = np.maximum(
            posterior.compute_log_probs(of, known), -1e9
        )
    return logits_WxNxLxV


@pytest.fixture(autouse=True)
def no_windows(monkeypatch):
    """The floors of models that see less take longer than the rest, and have tests of their own."""
    for seen, kind in floors.FLOORS.items():
        monkeypatch.setitem(floors.FLOORS, seen, kind._replace(weaker_floors={}))


def evaluate(cfg, rows, made, logits_WxNxLxV):
    """The evaluation of a table, and its gap's parts."""
    state = types.TrainState(0, {"model": jnp.asarray(logits_WxNxLxV), "objective": {}}, ())
    beside = references.compute_references(cfg, made, rows)
    columns = beside.add_columns(split_scores.collect_columns(cfg, made, state, rows.validation))
    run = trained_run.TrainedRun(cfg, 0, rows.tokenizer, made, state, "", rows.dataset_info, rows)
    (case,) = loss_decomposition.list_due_cases(cfg)
    return (
        split_scores.summarize(columns, (*made.objective.scores, *beside.scores)),
        loss_decomposition.evaluate(run, case, lambda: None),
    )


@pytest.mark.exhaustive(but=("hybrid-mixed", "diffusion-bidirectional", "denoising-causal"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.objective}-{case.sees}")
def test_the_optimum_has_no_gap_and_a_worse_model_one_that_its_parts_add_up_to(data, case):
    cfg, rows, language = data
    cfg = fields.override(cfg, {"objective": case.objective, "model.directionality": case.sees})
    ways = {"two_stack": ("left", "right"), "bidirectional": ("both",), "mixed": ("row",), "causal": ("left",)}[
        case.sees
    ]
    made = program.build_program(cfg, rows.dataset_info, jax.devices()[:1])
    hidden_NxL = references.compute_eval_mask(cfg, made, rows)
    logits_WxNxLxV = exact(cfg, rows, language, case, hidden_NxL)
    made = made._replace(model=table(rows.validation["ids"], hidden_NxL, ways))
    found, made_of = evaluate(cfg, rows, made, logits_WxNxLxV)
    worse, worse_of = evaluate(cfg, rows, made, logits_WxNxLxV * np.float32(0.7))
    for own in ("", "causal_") if case.objective == "hybrid" else ("",):
        assert found[f"{own}excess_loss"] == pytest.approx(0, abs=1e-5)
        assert found[f"{own}accuracy"] == pytest.approx(found[f"{own}floor_accuracy"], abs=0.003)
        assert 0.05 < worse[f"{own}loss"] < found["unigram_loss"]
        assert worse[f"{own}excess_loss"] > max(0.01, 3 * worse[f"{own}excess_loss_se"])
        assert worse[f"{own}loss"] == pytest.approx(worse[f"{own}excess_loss"] + found[f"{own}floor"], abs=1e-5)
    np.testing.assert_allclose([made_of[part]["excess"] for part in PARTS], 0, atol=1e-4)
    assert sum(worse_of[part]["excess"] for part in PARTS) == pytest.approx(worse["excess_loss"], abs=1e-4)
    assert made_of["predictions"] == found["predictions"]

    ids_NxL = rows.validation["ids"]
    words_NxL = grammar.convert_ids_to_words(language, rows.tokenizer.pieces, ids_NxL)
    if case.objective == "denoising":
        assert "document_loss" not in found
        return
    log_P = diffusion_bound.compute_length_log_probs(language.hmm, cfg.data.language.max_words)
    given_N = diffusion_bound.compute_log_probs(language.hmm, words_NxL, words_NxL >= 0)
    length_N = log_P[(words_NxL >= 0).sum(1)]
    assert found["document_floor"] == pytest.approx(-(given_N + length_N).mean(), rel=1e-6)
    assert found["document_loss"] == pytest.approx(found["document_floor"], abs=1e-3)
    if case.objective == "diffusion":
        assert found["bound"] == pytest.approx(-given_N.sum() / (words_NxL >= 0).sum(), rel=1e-6)
        assert found["predictions"] == (ids_NxL >= NUM_SPECIAL).sum()
    of_document = worse["causal_excess_loss" if case.objective == "hybrid" else "excess_loss"] * {
        "diffusion": (words_NxL >= 0).sum(1).mean()
    }.get(case.objective, ((words_NxL >= 0).sum(1) + 1).mean())
    assert worse["document_excess_loss"] == pytest.approx(of_document, rel=1e-5)
    assert worse["document_loss"] == pytest.approx(worse["document_floor"] + worse["document_excess_loss"], rel=1e-9)
