"""Tasks as prompts: the same numbers as one masked token at a time, bad patterns and verbalizers, few-shot examples."""

import types as plain

import numpy as np
import pytest
from small import build, small_config

from mlm.base import config, errors, fields, types
from mlm.base.special import CLS, MASK, PAD, SEP, SPECIAL_TOKENS
from mlm.data.tokenizers import words
from mlm.evaluation import evaluation_tasks, few_shot, prompts
from mlm.inference import forward_passes
from mlm.training.run import finetuning_recipe
from mlm.training.run.trained_run import TrainedRun
from mlm.training.step import parallel

SAID = ["was", "It", ".", ",", "?", "This", "is", "great", "terrible", "Yes", "No", *(f"w{n}" for n in range(34))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small model that was never trained, and a vocabulary of words."""
    folder = tmp_path_factory.mktemp("words")
    cfg = small_config(
        eval__batch_size=8, model__num_layers=1, model__dropout=0.0, model__attention_dropout=0.0, workdir=str(folder)
    )
    model, params, _ = build(cfg)
    made = plain.SimpleNamespace(model=model, partitioner=parallel.build_single_device(lambda *arguments: None))
    tokenizer = words.build_words("\n".join([*SPECIAL_TOKENS, *SAID]).encode())
    return TrainedRun(cfg, 0, tokenizer, made, types.TrainState(0, {"model": params, "objective": {}}, ()), "", None)


@pytest.fixture
def folder(tmp_path):
    """A task in the files of sst2: a text with w0 has the label 1, one with w1 has 0."""
    draws = np.random.default_rng(0)
    for name, count in (("train", 120), ("dev", 37)):
        lines = [
            f"{'w0 w0' if number else 'w1 w1'} {draws.choice(SAID[15:])}\t{number}\n"
            for number in draws.integers(0, 2, count)
        ]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    return str(tmp_path)


def test_verbalizers_name_their_labels_or_stand_in_their_order(folder):
    for given in ("0=terrible", "1=great"), ("1=great", "0=terrible"), ("terrible", "great"):
        assert prompts.read_task("sst2", folder, words=given).verbalizers == {"0": "terrible", "1": "great"}
    for given, said in (("1=great", "2=bad"), "'2': expected one of 0, 1"), (("1=great",), "order, or LABEL="):
        with pytest.raises(errors.ConfigError, match=f"^--verbalizers = .*{said}"):
            prompts.read_task("sst2", folder, words=given)


def test_zero_shot_is_the_log_probability_of_each_word_at_the_hidden_place(run, folder):
    task = prompts.read_task("sst2", folder)
    part = prompts.make_zero_shot_case(task)
    found = evaluation_tasks.EVALUATIONS["zero_shot"].evaluate(run, part, lambda share: None)
    score, right, predicted = forward_passes.make_scorer(run.program.model, run.program.partitioner, run.state), 0, []
    for text, label in task.dev:
        ids = run.tokenizer.encode(text + " It was")
        rows = [
            [CLS, *ids, *run.tokenizer.encode(word), *run.tokenizer.encode("."), SEP] for word in ("terrible", "great")
        ]
        ids_BxL = np.array([row + [PAD] * (16 - len(row)) for row in rows * 4], np.int32)
        place_B = np.full(8, len(ids) + 1, np.int32)
        log_prob_B = score(forward_passes.MaskedQueries(ids_BxL, place_B, place_B + 1))
        predicted.append(int(log_prob_B[1] > log_prob_B[0]))
        right += predicted[-1] == label
    assert found["accuracy"] == right / 37 and found["examples"] == 37 and found["truncated"] == 0
    assert found["accuracy_se"] == pytest.approx(np.sqrt(right / 37 * (1 - right / 37) / 36))
    assert found["predicted"] == pytest.approx({"0": 1 - np.mean(predicted), "1": np.mean(predicted)})
    most = int(np.mean([number for *_, number in task.train]) > 0.5)
    assert found["majority"] == np.mean([number == most for *_, number in task.dev])
    asked, _ = prompts.build_queries(run.tokenizer, part.inputs["pattern"], task.dev[:8], 16)
    answer = run.program.partitioner.jit_per_example(
        prompts.compute_label_log_probs,
        run.program.model,
        prompts.encode_verbalizers(run.tokenizer, part.inputs["pattern"], task.verbalizers).tobytes(),
    )
    assert answer(run.state, asked, None)[-1].shape == (2,)


@pytest.mark.exhaustive
def test_rows_of_like_lengths_are_asked_together_and_answered_as_alone_and_in_order(run):
    draws, length = np.random.default_rng(0), 32
    size_N = draws.integers(3, length, 50)
    ids_NxL = np.where(np.arange(length) < size_N[:, None], draws.integers(5, 40, (50, length)), PAD).astype(np.int32)
    place_N = (draws.integers(1, size_N - 1)).astype(np.int32)
    answer = run.program.partitioner.jit_per_example(
        prompts.compute_label_log_probs, run.program.model, np.array([6, 9], np.int32).tobytes()
    )
    shapes, told = [], []

    def ask(asked):
        shapes.append(asked.ids_BxL.shape)
        return answer(run.state, run.program.partitioner.put_batch(asked), None)

    asked = forward_passes.MaskedQueries(ids_NxL, place_N, place_N + 1)
    found_NxC = prompts.score_queries(ask, asked, 8, told.append)
    assert len(told) == len(shapes) and told[-1] == 1 and all(rows % 8 == 0 for rows, _ in shapes)
    assert sum(rows * columns for rows, columns in shapes) < 0.8 * 56 * length
    alone_NxC = np.concatenate(
        [ask(forward_passes.MaskedQueries(*(np.repeat(x[n : n + 1], 8, 0) for x in asked)))[:1] for n in range(50)]
    )
    np.testing.assert_allclose(found_NxC, alone_NxC, atol=1e-5)


def test_texts_are_cut_and_the_hidden_place_stays(run):
    long, short = " ".join(f"w{n}" for n in range(20)), "w1 w2"
    for pattern, texts, cut, kept in (
        ("{text} It was [MASK] .", [long], 1, 10),
        ("{text} It was [MASK] .", [short], 0, 2),
        ("[MASK] , {text}", [long], 1, 12),
        ("{text} ? [MASK] , {second}", [long, short], 1, 11),
        ("{text} ? [MASK] , {second}", [short, long], 1, 11),
        ("{text} ? [MASK] , {second}", [long, long], 1, 11),
    ):
        rows, count = prompts.build_queries(run.tokenizer, pattern, [[*texts, 0]], 16)
        (ids_L,), (place,), (end,) = rows
        assert count == cut and ids_L[place] == MASK and end == place + 1 and (ids_L == MASK).sum() == 1
        said = [run.tokenizer.pieces[i] for i in ids_L if i not in (CLS, SEP, PAD, MASK)]
        fixed = [word for word in pattern.split() if word[0] not in "{["]
        assert [word for word in said if word in fixed] == fixed and len(said) - len(fixed) == kept
        assert ids_L[0] == CLS and ids_L[ids_L != PAD][-1] == SEP
    with pytest.raises(errors.ConfigError, match=r"^--pattern = .*: expected a pattern that leaves room for texts"):
        prompts.build_queries(run.tokenizer, "{text} [MASK] " + "was " * 13, [["w1", 0]], 16)


def test_the_examples_are_those_of_the_papers_code():
    """np.random.seed, np.random.shuffle of all lines, the first 16 of each label, and the next 16."""
    lines = [[f"text {number}", number % 3 % 2] for number in range(200)]
    shuffled = list(lines)
    np.random.seed(13)
    np.random.shuffle(shuffled)
    train, choose = few_shot.sample_examples(lines, 2, 13)
    for label in (0, 1):
        mine = [one for one in shuffled if one[1] == label]
        assert [one for one in train if one[1] == label] == mine[:16]
        assert [one for one in choose if one[1] == label] == mine[16:32]


def test_a_few_examples_teach_a_word_and_the_trial_that_others_choose_is_kept(run, folder):
    task = prompts.read_task("sst2", folder)
    grid = few_shot.FewShotGrid((8,), (1e-9, 1e-2), 60, 20)
    parts = few_shot.list_cases(task, grid)
    assert [part.name.partition("/")[2] for part in parts] == ["13", "21", "42", "87", "100"]
    assert len(parts[0].inputs["train"]) == len(parts[0].inputs["selection"]) == 32
    told = []
    found = evaluation_tasks.EVALUATIONS["few_shot"].evaluate(run, parts[0], told.append)
    assert told == pytest.approx([(i + 1) / 6 for i in range(6)]) and found["trials"] == 2
    zero = prompts.evaluate(run, prompts.make_zero_shot_case(task), lambda share: None)
    assert found["selected"]["learning_rate"] == 1e-2 and found["selected"]["accuracy"] > 0.9
    assert found["accuracy"] > max(zero["accuracy"], zero["majority"]) + 0.2 and found["examples"] == 37
    still = few_shot.evaluate(
        run, parts[0]._replace(inputs=parts[0].inputs | {"grid": [[8], [1e-9], 60, 20]}), lambda share: None
    )
    assert still["accuracy"] == zero["accuracy"]  # nothing is drawn anew: without learning it is zero-shot

    kept = {
        f"{prompts.format_key(task)}/{seed}": {"task": "sst2", "accuracy": value, "sha256": "ab"}
        for seed, value in zip(few_shot.SEEDS, (0.5, 0.6, 0.7, 0.8, 0.9), strict=True)
    }
    (of_all,) = few_shot.summarize(kept).values()
    assert of_all["accuracy"] == pytest.approx(0.7) and of_all["samples"] == 5
    assert of_all["accuracy_low"] == pytest.approx(0.7 - 2.776 * np.sqrt(0.025 / 5), abs=1e-3)
    judged = {
        "evaluations": {
            "zero_shot": {
                prompts.format_key(task): zero
                | {"task": "sst2", "sha256": "ab", **{"pattern": task.pattern, "verbalizers": task.verbalizers}}
            }
        },
        "summary": {"few_shot": {prompts.format_key(task): of_all}},
    }
    ((row,), _, _) = prompts.build_tables(judged)[0]
    assert row["few_shot"].mean == pytest.approx(0.7) and row["zero_shot"].mean == zero["accuracy"]
    columns = {score.metric.name for score in evaluation_tasks.list_scores(judged)}
    assert columns == {"zero_shot_sst2", "few_shot_sst2"}


def unusual(value):
    """Another value of the same type."""
    return (not value) if isinstance(value, bool) else f"{value}x" if isinstance(value, str) else 2 * value + 1


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in fields.DEFAULT
        if name.startswith(("optim.", "train.", "init.")) and name != "optim.label_smoothing"
    ],
)
def test_how_a_run_was_trained_has_no_effect_on_what_is_trained_from_it(name):
    """On the trials of few examples, and on fine-tunings; label smoothing is a part of objectives that these lack."""
    cfg = config.Config(downstream=config.Downstream(tasks="topic"))
    other = fields.override(cfg, {name: unusual(fields.DEFAULT[name])})
    assert few_shot.make_config(other, 4, 50) == few_shot.make_config(cfg, 4, 50)
    trial, *_ = finetuning_recipe.list_trials(cfg)
    assert finetuning_recipe.plan_config(other, trial) == finetuning_recipe.plan_config(cfg, trial)
