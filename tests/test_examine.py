"""What is asked at a run's end: the optimum is told so at every rate and by every probe, an untrained model is not."""
import jax
import numpy as np
import pytest
from small import drawn_config

from mlm.base import types
from mlm.base.special import MASK
from mlm.data.language import grammar, posterior, probes
from mlm.data.rows import pack
from mlm.judge import grammar as judge
from mlm.train.step import parallel, program

RATES = (0.1, 0.4, 0.8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cfg = drawn_config(tmp_path_factory.mktemp("cache"), eval__rates=RATES, eval__batch_size=16,
                       data__language__validation_documents=40)
    return cfg, pack.load(cfg, "train"), pack.load(cfg, "validation")


def optimum(cfg, held_out) -> types.Model:
    """The posterior as a model: it says what it makes of the masked words in the rows that it is given."""
    language, pieces = grammar.build(cfg.data.language), held_out.tokenizer.pieces
    entry_W = np.array([pieces.index(word) for word in language.words])

    def encode(params, batch, *, key_B=None):
        ids_BxL = np.asarray(batch.ids_BxL)
        hidden_BxL = ids_BxL == MASK
        words_BxL = grammar.words(language, pieces, np.where(hidden_BxL, entry_W[0], ids_BxL))
        logits_BxLxV = np.full((*ids_BxL.shape, len(pieces)), -1e9, np.float32)
        row_K, column_K = np.nonzero(hidden_BxL)
        logits_BxLxV[row_K[:, None], column_K[:, None], entry_W] = posterior.log_probs(
            language.hmm, posterior.posterior(language.hmm, words_BxL, hidden_BxL))
        return jax.numpy.asarray(logits_BxLxV)

    return types.Model(None, encode, lambda params, h: h)


def test_the_optimum_is_told_so(data):
    cfg, rows, held_out = data
    one = parallel.over_mesh(None, jax.devices()[:1])._replace(  # the posterior is computed on this host: no compiling
        per_row=lambda function, *fixed: lambda *arguments: jax.device_get(function(*fixed, *arguments)),
        put_batch=lambda batch: batch)
    made = program.build(cfg, rows)._replace(model=optimum(cfg, held_out), run=one)
    found = judge.examine(cfg, made, held_out, {"model": None, "objective": {}})
    assert [at["rate"] for at in found["rates"]] == list(RATES)
    for at in found["rates"]:
        assert at["gap"] == pytest.approx(0, abs=1e-5) and at["realised_rate"] == pytest.approx(at["rate"], abs=0.01)
    losses = [at["floor"] for at in found["rates"]]
    assert losses == sorted(losses) and losses[-1] > losses[0] + 0.5
    for name, bins in (("agreement", probes.DISTANCES), ("recall", probes.SENTENCES)):
        asked = found["probes"][name]
        assert asked["accuracy"] == asked["optimum"] > 0.8
        assert [(part["low"], part["high"]) for part in asked["distance"]] == list(bins)[:len(asked["distance"])]
        assert sum(part["items"] for part in asked["distance"]) == asked["items"] > 40
        assert all(part["accuracy"] == part["optimum"] for part in asked["distance"])
    assert len(found["probes"]["agreement"]["attractors"]) > 1


def untrained(data, mode, devices):
    cfg, rows, held_out = data
    made = program.build(cfg, rows)
    made = made._replace(run=parallel.MODES[mode](made.train_step, jax.devices()[:devices]))
    state = jax.device_get(made.initial(program.training_knobs(cfg)))
    return judge.examine(cfg, made, held_out, made.run.put_state(state))


def test_an_untrained_model_guesses_and_devices_agree_on_it(data):
    single = untrained(data, "jit", 1)
    for at in single["rates"]:
        assert at["gap"] > 1 and at["loss"] == pytest.approx(np.log(data[1].tokenizer.vocab_size), abs=1)
    agreement = single["probes"]["agreement"]
    assert abs(agreement["accuracy"] - 0.5) < 0.25 < agreement["optimum"] - 0.5
    assert single["probes"]["recall"]["accuracy"] < 0.5 * single["probes"]["recall"]["optimum"]
    for mode, devices in (("jit", 2), ("pmap", 2)):
        other = untrained(data, mode, devices)
        assert other["probes"] == single["probes"]
        assert other["rates"] == [pytest.approx(at, rel=1e-4, abs=1e-5) for at in single["rates"]]


def test_words_out_of_order_leave_agreement_out(data):
    cfg = drawn_config(data[0].data.cache, data__language__order=0.9, data__language__validation_documents=40)
    found = untrained((cfg, pack.load(cfg, "train"), pack.load(cfg, "validation")), "jit", 1)
    assert set(found) == {"probes"} and set(found["probes"]) == {"recall"}
