"""What chance decides is what it was when its version was last raised (RNG_VERSIONS of mlm/base/fields.py).

Where a test fails here, draws have changed: raise their version in DRAWN, then write down what is drawn now.
"""

import itertools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import FAMILY_CELLS, ONE_EACH, VOCAB, mark_further, small_config

from mlm.base import fields
from mlm.base.fields import RNG_VERSIONS, get_rng_versions
from mlm.data.language import grammar, probes
from mlm.data.rows import loader
from mlm.models import MODELS, layers
from mlm.objectives import masking, replaced_token_detection
from mlm.training.step import update

LANGUAGE = small_config(data__corpus="language", pack__seq_len=32).data.language


def crc32(*values) -> str:
    return f"{zlib.crc32(b''.join(np.ascontiguousarray(value, np.int64).tobytes() for value in values)):08x}"


def language():
    return zlib.crc32("\n".join(itertools.islice(grammar.iterate_documents(LANGUAGE), 50)).encode())


def batches():
    rows = dict.fromkeys(("ids", "segments", "positions"), np.zeros((40, 4), np.int32))
    rows[loader.NUM_TOKENS] = np.arange(40)[:, None] % 5
    made = (
        loader.iterate_train_batches(rows, seed=3, batch_size=4, start_step=7, grouped=grouped)
        for grouped in (False, True)
    )
    return crc32(
        *(
            np.stack([batch.split_index_B, batch.epoch_B, batch.index_B])
            for of in made
            for batch in itertools.islice(of, 20)
        )
    )


def masks():
    keys = update.make_example_keys(np.uint32(3), np.int32(5), jnp.arange(8))
    ids = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (8, 32)), jnp.int32)
    drawn = jax.jit(
        lambda: [
            masking.corrupt_tokens(
                keys,
                ids,
                rate=0.3,
                mask_token_prob=0.5,
                random_token_prob=0.3,
                num_slots=12,
                cdf_V=masking.compute_random_token_cdf(np.ones(VOCAB), True),
                predict_rate=0.4,
                mask_index=view,
                num_masks=2,
            )
            for view in range(2)
        ]
    )()
    return crc32(*(np.concatenate([one.ids_BxL, one.positions_BxK, one.weights_BxK], 1) for one in drawn))


def replacements():
    keys = update.make_example_keys(np.uint32(3), np.int32(5), jnp.arange(8))
    logits = jnp.asarray(np.random.default_rng(0).integers(0, 3, (8, 32, VOCAB)), jnp.float32)
    return crc32(jax.jit(replaced_token_detection.sample_tokens)(keys, logits))


def draw_dropout():
    return crc32(*(layers.sample_keep_mask(jax.random.key(3), rate, (5, 7, 11), 13) for rate in (0.1, 0.5)))


def items():
    made = grammar.build_grammar(LANGUAGE)
    words = [
        [made.words.index(word) for word in document.split()]
        for document in itertools.islice(grammar.iterate_documents(LANGUAGE), 200)
    ]
    words_NxL = np.array([row + [-1] * (30 - len(row)) for row in words])
    return crc32(
        *(
            np.stack(probes.sample_items(every(made, words_NxL), probes.SENTENCE_BINS, 20, 5)[0])
            for every in (probes.find_recall_items, probes.find_agreement_items)
        )
    )


@pytest.mark.parametrize(
    ("name", "version", "draw", "drawn"),
    [
        ("language", 1, language, 3612678098),
        ("batches", 2, batches, "ce4f9388"),
        ("masks", 2, masks, "29edbd21"),
        ("replacements", 2, replacements, "4af128e1"),
        ("dropout", 2, draw_dropout, "47b1c9d2"),
        ("probes", 1, items, "1cfc59cb"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_draws_of_whole_numbers(name, version, draw, drawn):
    assert (get_rng_versions("replaced_token_detection")[name], draw()) == (version, drawn)


def test_the_draws_of_one_objective_name_its_runs_alone(monkeypatch):
    own, other = (small_config(objective=name) for name in ("replaced_token_detection", "mlm"))
    prints, saved = [fields.fingerprint(cfg) for cfg in (own, other)], fields.build_identity(own, {})
    older = saved | {"rng_versions": RNG_VERSIONS}
    monkeypatch.setitem(fields.REPLACEMENTS, "replacements", 3)
    assert fields.fingerprint(own) != prints[0] and fields.fingerprint(other) == prints[1]
    found = [fields.describe_rng_change(one) for one in (saved, older, fields.build_identity(other, {}))]
    assert found == ["replacements 2, now 3", "replacements 1, now 3", ""]


SUMS = {
    ("feedforward", "window"): [656.7938, 56.5571],
    ("feedforward", "bag"): [577.6599, 59.4591],
    ("rnn", "lstm"): [3183.6775, 81.9547],
    ("rnn", "gru"): [2507.6223, 73.4342],
    ("rnn", "elman"): [1115.8020, 77.6432],
    ("rnn", "mingru"): [1056.3153, 73.5709],
    ("rnn", "minlstm"): [1381.2072, 67.5393],
    ("rnn", "rglru"): [2225.3816, 61.4561],
    ("rnn", "ssd"): [1636.9906, 141.4796],
    ("mixer", "conv"): [949.3480, 75.5501],
    ("mixer", "gmlp"): [756.8257, 92.7591],
    ("mixer", "fnet"): [863.1979, 88.5425],
    ("transformer", ""): [1057.2512, 90.2736],
}


# In the suite a member of each family, and the cells with an initializer of their own.
@pytest.mark.parametrize(
    ("family", "cell"), mark_further(FAMILY_CELLS, [*ONE_EACH, ("rnn", "rglru"), ("rnn", "ssd"), ("mixer", "gmlp")])
)
def test_first_parameters(family, cell):
    """By their sums, as processors round otherwise."""
    model = MODELS[family].build(small_config(family, cell).model, VOCAB)
    leaves = jax.tree.leaves(jax.jit(model.init)(jax.random.key(3)))
    found = [float(sum(np.sum(function(leaf)) for leaf in leaves)) for function in (np.abs, np.sin)]
    assert (family, cell) in SUMS, f"SUMS lacks {(family, cell)}, whose sums are {found}"
    assert RNG_VERSIONS["parameters"] == 1 and found == pytest.approx(SUMS[family, cell], rel=1e-4)
