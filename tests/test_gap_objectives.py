"""Each objective's gap is that to its own floor, and all that tell whole documents stand in nats per document."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gap import data  # noqa: F401  a fixture

from mlm.base import fields, types
from mlm.base.special import CLS, MASK, NUM_SPECIAL, SEP
from mlm.data.language import grammar, left, posterior, right
from mlm.judge import gap
from mlm.judge.judged import Part
from mlm.train.run import trained
from mlm.train.step import evaluation, program, references


def table(ids_NxL, ways) -> types.Model:
    """Predicts what its only parameter says for each way, row of the split, and place."""
    def hidden(params, text, source=None, *, key_B=None):
        row_B = ((text.ids_BxL[:, None] == ids_NxL) | (text.ids_BxL[:, None] == MASK)).sum(-1).argmax(1)
        at = jnp.stack(jnp.broadcast_arrays(row_B[:, None], jnp.arange(text.ids_BxL.shape[1])), -1)
        return tuple(jnp.concatenate([at, jnp.full_like(at[..., :1], way)], -1) for way in range(len(ways)))

    return types.Model(ways, 3, None, hidden, lambda logits_WxNxLxV, h_BxKx3: logits_WxNxLxV[
        h_BxKx3[..., 2], h_BxKx3[..., 0], h_BxKx3[..., 1]])


def told(cfg, rows, language, way):
    """The exact logits of a way, at the place whose state tells each token: logits_NxLxV."""
    ids_NxL = rows.validation["ids"]
    words_NxL = grammar.words(language, rows.tokenizer.pieces, ids_NxL)
    see = {"left": left.left_posterior, "right": right.right_posterior}[way]
    known = see(language.hmm, words_NxL, cfg.data.language.words)
    end = {"left": SEP, "right": CLS}[way]
    entry_W = np.array([*(rows.tokenizer.pieces.index(word) for word in language.words), end])
    place_K = known.column_K - 1 if way == "left" else ids_NxL.shape[1] - known.column_K
    logits_NxLxV = np.full((*ids_NxL.shape, rows.about.vocab_size), -1e9, np.float32)
    logits_NxLxV[known.row_K[:, None], place_K[:, None], entry_W] = posterior.log_probs(left.ended(language.hmm), known)
    return logits_NxLxV


@pytest.fixture(scope="module")
def exact(data):  # noqa: F811
    cfg, rows, language = data
    return {way: told(cfg, rows, language, way) for way in ("left", "right")}


def judged(cfg, rows, ways, logits_WxNxLxV):
    """The evaluation of a table, and its gap's parts."""
    made = program.build(cfg, rows.about, jax.devices()[:1])._replace(
        model=table(jnp.asarray(np.asarray(rows.validation["ids"], np.int32)), ways))
    state = types.TrainState(0, {"model": jnp.asarray(logits_WxNxLxV), "objective": {}}, ())
    beside = references.measure(cfg, made, rows)
    columns = beside.add(evaluation.collect(cfg, made, state, rows.validation))
    run = trained.Trained(cfg, 0, rows.tokenizer, made, state, "", rows.about, rows)
    return (evaluation.summary(columns, (*made.objective.scores, *beside.scores)),
            gap.ask(run, Part("gap", "parts", gap.asked(cfg)), lambda: None))


@pytest.mark.parametrize("sees", ["left", "apart"])
def test_a_document_costs_the_same_however_it_is_told(data, exact, sees):  # noqa: F811
    cfg, rows, _ = data
    cfg = fields.override(cfg, {"objective": "causal", "model.sees": sees})
    ways = ("left",) if sees == "left" else ("left", "right")
    logits_WxNxLxV = np.stack([exact[way] for way in ways])
    found, made_of = judged(cfg, rows, ways, logits_WxNxLxV)
    assert found["gap"] == pytest.approx(0, abs=1e-5) and found["document_gap"] == pytest.approx(0, abs=1e-3)
    assert found["accuracy"] == pytest.approx(found["floor_accuracy"], abs=0.01)
    ids_NxL = rows.validation["ids"]
    asked = (ids_NxL >= NUM_SPECIAL).sum() + len(ids_NxL)  # of each way
    assert found["predictions"] == asked * len(ways)
    assert found["document_loss"] == pytest.approx(found["loss"] * asked / len(ids_NxL), rel=1e-5)
    assert found["document_floor"] == pytest.approx(found["document_loss"], rel=1e-5)
    for part in ("kind", "number", "word"):
        assert made_of[part]["excess"] == pytest.approx(0, abs=1e-4)

    worse_WxNxLxV = logits_WxNxLxV.copy()
    worse_WxNxLxV[-1] *= 0.7    # of the last way alone
    worse, made_of = judged(cfg, rows, ways, worse_WxNxLxV)
    assert worse["gap"] > max(0.01, 3 * worse["gap_se"])
    assert worse["document_gap"] == pytest.approx(worse["gap"] * asked / len(ids_NxL), rel=1e-5)
    assert worse["document_loss"] == pytest.approx(worse["document_floor"] + worse["document_gap"], rel=1e-9)
    assert sum(made_of[part]["excess"] for part in ("kind", "number", "word")) == pytest.approx(worse["gap"], abs=1e-4)
    assert made_of["predictions"] == found["predictions"]
