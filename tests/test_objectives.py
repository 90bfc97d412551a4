"""What holds for every objective with every member: the contract that a new one of either is held to.

The cheap contracts cross all objectives with all members, whole runs all objectives with one member of each family.
"""

import functools
import json
import os
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import (
    ABOVE_STATES,
    FAMILY_CELLS,
    LABELLED,
    ON_LANGUAGE,
    ONE_EACH,
    ONE_SIDED,
    PLAIN,
    SOURCED,
    VOCAB,
    batch,
    make_dataset_info,
    make_run_config,
    mark_further,
    params_of,
    replace_text,
    small_config,
    train_config,
)

from mlm.base import errors, estimates, types
from mlm.base.special import CLS, MASK, NUM_SPECIAL
from mlm.evaluation import evaluation_tasks
from mlm.launch.sweep import local_timing
from mlm.objectives import OBJECTIVES
from mlm.report import summary
from mlm.report.pages import sweep
from mlm.report.table import Column
from mlm.training.run import hooks, resolution
from mlm.training.run.directory import RunDirectory
from mlm.training.step import program, update
from mlm.training.validation import split_scores

pytestmark = pytest.mark.usefixtures("quick_to_compile")

ROWS = VOCAB - NUM_SPECIAL  # one for each token in test_nothing_leaks, so that one program serves all tests
OF_TOKENS = [objective for objective in OBJECTIVES if objective not in (*LABELLED, *SOURCED)]
CROSS = [
    (objective, *member)
    for objective in OF_TOKENS
    for member in (ONE_SIDED if objective in ("causal", "hybrid") else FAMILY_CELLS)
]
# Each objective with one member, and two with a member of each family; each member: tests/test_models.py.
IN_SUITE = [
    case for case in CROSS if case[1:] == ONE_EACH[0] or (case[0] in ("mlm", "causal") and case[1:] in ONE_EACH)
]
cross = pytest.mark.parametrize(
    ("objective", "family", "cell"), mark_further(CROSS, IN_SUITE), ids=["-".join(filter(None, case)) for case in CROSS]
)
runs = pytest.mark.parametrize(
    ("objective", "family", "cell"),
    [
        (objective, *member)
        for objective in ON_LANGUAGE
        if objective not in ABOVE_STATES
        for member in ([*ONE_EACH, ("feedforward", "bag")] if objective == "mlm" else ONE_EACH[:1])
    ],
)


class Judged:
    """An objective on a member with parameters of no special values, its evaluation compiled for any parameters."""

    def __init__(self, objective, family, cell):
        self.cfg = small_config(
            family,
            cell,
            objective=objective,
            model__num_layers=1,
            mask__rate=0.3,
            eval__mask_rate=0.3,
            train__batch_size=ROWS,
            finetune__pooling="mean",
            **PLAIN,
        )  # the first token is every row's
        self.made = program.build_program(self.cfg, make_dataset_info(self.cfg), jax.devices()[:1])
        self.predicts_tokens = self.made.objective.predicts_tokens
        self.params = params_of(self.made.init_state.eval_shape(program.make_train_hparams(self.cfg)).params, 0.15)
        self.knobs = program.make_eval_hparams(self.cfg)
        self.step = jax.jit(self.evaluate)
        self.nats, self.weight = next(s for s in self.made.objective.scores if s.name == "loss").columns

    def evaluate(self, params, rows):
        keys = update.make_eval_keys(self.knobs, rows.index_B)
        asked_BxL = self.made.objective.eval_mask(rows.text, keys, self.knobs)
        return update.eval_step(self.made.model, self.made.objective, params, rows, self.knobs), asked_BxL

    def list_asked(self, rows):
        """Which tokens an evaluation asks for."""
        return np.asarray(self.step(self.params, rows)[1])

    def __call__(self, rows, params=None):
        columns = jax.device_get(split_scores.name_sums(self.step(params or self.params, rows)[0]))
        is_coupled = self.made.objective.coupling is not None  # then the host compares rows
        return self.made.objective.host_metrics(columns, *split(rows)) if is_coupled else columns


@functools.cache
def judge(objective, family, cell):
    return Judged(objective, family, cell)


def labelled(rows=ROWS, **changes):
    """Rows of which the last is padding alone, with every label there can be."""
    full = batch(rows, labels=True, **changes)
    real = (np.arange(rows) < rows - 1)[:, None]
    return replace_text(full, ids_BxL=full.text.ids_BxL * real, segments_BxL=full.text.segments_BxL * real)


def split(rows):
    """The columns of a split of these rows, and its examples, as a tally is handed them."""
    columns = {name.rpartition("_")[0]: column for name, column in {**rows.text._asdict(), **rows.labels}.items()}
    example = {"texts": ("", "abcdef"), "label": (("b", 1),), "spans": [[at, at + 1] for at in range(6)]}
    return columns, [example | {"row": row, "rows": 1} for row in range(len(rows.index_B))]


@cross
def test_losses_are_sums_over_each_row_alone(objective, family, cell):
    """Turned rows give turned sums; a row of padding adds nothing; weights count predictions."""
    of, rows = judge(objective, family, cell), labelled()
    found, turned = of(rows), of(jax.tree.map(lambda x: x[::-1], rows))
    for name, value_B in found.items():
        np.testing.assert_allclose(turned[name][::-1], value_B, rtol=1e-4, atol=1e-5, err_msg=name)
        assert not value_B[-1].any() and len(value_B) == ROWS, name
    assert (found[of.weight] == found[of.weight].round()).all() and found[of.weight][:-1].sum() >= ROWS - 1
    asked_BxL = of.list_asked(rows)
    counted_B = found.get("diffusion_masked", found[of.weight])  # whose weight is that of all tokens
    np.testing.assert_array_equal(asked_BxL.sum(1), counted_B if of.predicts_tokens else 0)


@cross
def test_weights_depend_on_no_parameter(objective, family, cell):
    of, rows = judge(objective, family, cell), labelled()
    one, other = of(rows), of(rows, jax.tree.map(lambda x: 1.5 * x, of.params))
    assert np.abs(one[of.nats] - other[of.nats]).max() > 1e-3
    for name in one:
        if name.endswith("_weight"):
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(
    ("objective", "family", "cell"),
    mark_further([case for case in CROSS if case[0] != "replaced_token_detection"], IN_SUITE),
)
def test_nothing_leaks(objective, family, cell):
    """What a model says of an asked token is a distribution: over all tokens that might stand there it sums to one.

    Were any of it seen, the probability of each would be taken from another distribution.
    """
    of = judge(objective, family, cell)
    places_L, length_B = np.arange(16), np.arange(2, ROWS + 2) % 6 + 2
    ids_BxL = np.random.default_rng(1).integers(NUM_SPECIAL, VOCAB, (ROWS, 16)).astype(np.int32)
    ids_BxL[:, 0] = CLS
    there_BxL = (places_L < length_B[:, None]).astype(np.int32)
    text = types.Tokens(ids_BxL * there_BxL, there_BxL, np.tile(places_L.astype(np.int32), (ROWS, 1)), 0 * ids_BxL)
    labels = {name: 0 * label for name, label in labelled().labels.items()}
    asked_BxL = of.list_asked(types.Batch(text, labels, np.arange(ROWS, dtype=np.int32)))
    row = np.flatnonzero(asked_BxL.sum(1) == 1)[-1]
    tokens_T = np.arange(NUM_SPECIAL, VOCAB, dtype=np.int32)
    rows = jax.tree.map(lambda x: np.repeat(x[row : row + 1], len(tokens_T), 0), text)
    rows.ids_BxL[:, asked_BxL[row].argmax()] = tokens_T
    never = jnp.where(jnp.arange(VOCAB) < NUM_SPECIAL, -1e9, 0)  # special tokens, which cannot be tried, are ruled out
    params = of.params | {"model": of.params["model"] | {"bias": of.params["model"]["bias"] + never}}
    found = of(types.Batch(rows, labels, np.full(ROWS, row, np.int32)), params)
    assert np.exp(-found[of.nats] / found[of.weight]).sum() == pytest.approx(1, abs=1e-4)


def test_next_sentences_are_told_from_the_first_state_and_the_unigram_is_right_of_the_likeliest_token():
    of, rows = judge("nsp", *ONE_EACH[0]), labelled()
    ids_BxL, follows_B = rows.text.ids_BxL, np.arange(ROWS, dtype=np.int32) % 2
    ids_BxL = np.where(ids_BxL == NUM_SPECIAL, VOCAB - 1, ids_BxL)  # an entry is as frequent as its number says
    rows = replace_text(rows, ids_BxL=ids_BxL)._replace(labels=rows.labels | {"next_B": follows_B})
    found, asked_BxL = of(rows), of.list_asked(rows)
    hidden, head = replace_text(rows, ids_BxL=np.where(asked_BxL, MASK, ids_BxL)).text, of.params["objective"]
    (h_BxLxD,) = jax.jit(of.made.model.encode)(of.params["model"], hidden)
    pooled_BxD = np.tanh(h_BxLxD[:, 0] @ head["pool"]["kernel"] + head["pool"]["bias"])
    log_prob_Bx2 = jax.nn.log_softmax(pooled_BxD @ head["label"]["kernel"] + head["label"]["bias"])
    real_B = np.arange(ROWS) < ROWS - 1
    nats_B, is_right_B = -log_prob_Bx2[np.arange(ROWS), follows_B], log_prob_Bx2.argmax(-1) == follows_B
    np.testing.assert_allclose(found["nsp_nats"], nats_B * real_B, rtol=1e-3)
    np.testing.assert_array_equal(found["nsp_correct"], is_right_B * real_B)
    likeliest_B = (asked_BxL & (ids_BxL == VOCAB - 1)).sum(1)
    assert likeliest_B.any() and found["unigram_correct"].tolist() == likeliest_B.tolist()


@pytest.mark.parametrize("objective", OF_TOKENS)
def test_scores_are_of_columns_that_there_are(objective, member=ONE_EACH[0]):
    of, rows = judge(objective, *member), labelled()
    found, scores = of(rows), of.made.objective.scores
    if of.made.objective.coupling is None:
        found = of.made.objective.host_metrics(found, *split(rows))
    result = split_scores.summarize(found, scores)
    assert scores[0].better and scores[0].chart and scores[0].columns[-1].endswith("_weight")
    assert result["predictions"] == found[scores[0].columns[-1]].sum()
    assert all(np.isfinite(result[score.name]) and result[f"{score.name}_se"] >= 0 for score in scores)
    assert {*of.made.objective.totals} <= found.keys()
    assert all(set(score.columns) <= found.keys() for score in of.made.objective.train_scores)
    assert [estimates.Score(**saved) for saved in json.loads(json.dumps([s._asdict() for s in scores]))] == [
        score._replace(columns=list(score.columns)) for score in scores
    ]


@pytest.mark.parametrize("objective", LABELLED)
def test_objectives_on_labelled_rows_are_held_to_the_same(objective):
    """On one member, since they read its states alone; what they say of a row does not depend on its labels."""
    of, rows = judge(objective, "transformer", ""), labelled()
    test_losses_are_sums_over_each_row_alone(objective, "transformer", "")
    test_weights_depend_on_no_parameter(objective, "transformer", "")
    test_scores_are_of_columns_that_there_are(objective, ("transformer", ""))
    found, other = of(rows), of(rows._replace(labels=labelled(seed=1).labels))
    assert (found[of.nats] != other[of.nats]).any() or not LABELLED[objective]
    told = {"predicted", "score", "start_logit", "end_logit"} & found.keys()
    assert len(told) == 2
    for name in told:
        np.testing.assert_array_equal(found[name], other[name])
        assert found[name].any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_it_cannot_use_is_refused(objective):
    sees = OBJECTIVES[objective].directionalities
    for way in {"bidirectional", "causal", "two_stack", "mixed"} - {*sees}:
        cfg = small_config(objective=objective, model__directionality=way, data__corpus="docstrings")
        with pytest.raises(errors.ConfigError, match=rf"config.model.directionality = '{way}': expected {sees[0]}"):
            resolution.check(cfg)
    assert small_config(objective=objective).model.directionality == sees[0]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


class Killed(BaseException):
    """The end of a run that nothing is told of."""


@pytest.mark.exhaustive(but=("mlm-feedforward-bag",))
@pytest.mark.slow
@runs
def test_a_killed_run_continues_bit_for_bit_and_reaches_table_and_report(
    cache, tmp_path, monkeypatch, objective, family, cell
):
    """Ended after step 3, a step behind its newest checkpoint, then asked to stop at step 4, which it saves."""
    whole, parted = (
        make_run_config(cache, tmp_path / name, family, cell, objective=objective, train__log_every=1)
        for name in ("whole", "parted")
    )
    expected = train_config(whole)

    def end_at(step, end):
        now = hooks.Preemption.is_requested
        return lambda self, checkpoints, number: (end() if number == step else None) or now(self, checkpoints, number)

    def kill():
        raise Killed

    for end, seen, step in ((kill, Killed, 3), (lambda: os.kill(os.getpid(), signal.SIGTERM), errors.RunStopped, 4)):
        with monkeypatch.context() as patch, pytest.raises(seen):
            patch.setattr(hooks.Preemption, "is_requested", end_at(step, end))
            train_config(parted)
    found = train_config(parted)
    for name in ("evaluation", "tokens", "predictions", "steps", "flops"):
        assert found[name] == expected[name], name
    one, other = (
        {
            record["step"]: record["loss"]
            for record in RunDirectory(cfg.workdir).read_finished()["history"]
            if "loss" in record
        }
        for cfg in (whole, parted)
    )
    assert one == other and list(one) == [1, 2, 3, 4, 5, 6]

    evaluation_tasks.finish_evaluations(whole)
    assert evaluation_tasks.list_missing_cases(whole) == []
    experiment = SimpleNamespace(
        __doc__="What?",
        table=lambda results: summary.build_table(results, [Column("run", "run")], lambda seeds: {"run": objective}),
    )
    page = sweep.write_report(tmp_path, experiment, [RunDirectory(whole.workdir).read_finished()], 1).read_text()
    table = (tmp_path / "table.md").read_text()
    for words in (objective, "Bayes optimum", "unigram", "above the floor"):
        assert words in table and words in page
    assert expected["evaluation"]["excess_loss"] > 0


@pytest.mark.exhaustive(but=("mlm",))
@pytest.mark.parametrize(
    ("name",),
    mark_further(
        [(name,) for name in OBJECTIVES],
        [(name,) for name in ("mlm", "replaced_token_detection", "denoising", "multiple_choice")],
    ),
)
def test_full_rows_have_the_tokens_of_the_plan_however_often_they_are_masked(name):
    masks = {"mask__predict_rate": 0.45} if name in ("mlm", "nsp") else {}
    family = {"family": "encoder_decoder", "cell": "transformer"} if name in SOURCED else {}
    cfg = small_config(objective=name, train__batch_size=4, model__num_layers=1, **masks, **family)
    info = make_dataset_info(cfg)
    model, objective = program.build_model_and_objective(program.make_static_config(cfg), info)
    hparams, batch = program.make_train_hparams(cfg), jax.tree.map(jnp.asarray, local_timing.random_batch(4, info))
    if info.source_len:
        batch = batch._replace(source=batch.text)
    params = jax.eval_shape(lambda: update.init_state(cfg, model, objective, hparams)).params
    keys = update.make_example_keys(0, 0, batch.index_B)
    assert objective.masks_per_example == (3 if masks else 1)

    @jax.jit
    def count_tokens(params):
        losses = [
            objective.loss(params, model, batch, keys, hparams, train=True, mask_index=mask)
            for mask in range(objective.masks_per_example)
        ]
        return sum(each.sums_B["tokens"].sum() for each in losses)

    assert count_tokens(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)) == 4 * info.seq_len
