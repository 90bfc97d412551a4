"""A trained run is judged from its directory alone, a part at a time, and what is done is not done again."""

import json
import random
import re
import shutil
import types
from pathlib import Path

import pytest
from hub_folders import change_tensors, make_folders
from small import get_refusal, read_example, small_config, train_config

import mlm
from mlm.base import errors, fields, files
from mlm.base.flag import Flag
from mlm.cli import evaluate
from mlm.data.text import corpus
from mlm.evaluation import evaluation_tasks, minimal_pairs
from mlm.evaluation.evaluations import EvaluationCase, make_evaluation
from mlm.inference import forward_passes, pseudo_likelihood
from mlm.launch.sweep import sweep_state
from mlm.report import summary
from mlm.report.table import Column
from mlm.training.run import trained_run
from mlm.training.run.directory import RunDirectory
from mlm.training.validation import split_scores


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of few steps on sentences whose words come in the order of their letters."""
    folder, draw = tmp_path_factory.mktemp("run"), random.Random(0)
    for number in range(60):
        (folder / f"{number}.txt").write_text(
            "\n".join(
                " ".join(sorted("".join(draw.choices("abcdefgh", k=draw.randint(1, 4))) for _ in range(6))) + "."
                for _ in range(10)
            )
        )
    cfg = small_config(
        "feedforward",
        "window",
        data__path=str(folder / "*.txt"),
        data__cache_dir=str(folder / "cache"),
        workdir=str(folder / "a"),
        tokenizer__kind="wordpiece",
        tokenizer__vocab_size=60,
        pack__seq_len=32,
        train__steps=30,
        train__batch_size=16,
        eval__batch_size=8,
        eval__mask_rates=(0.3,),
        optim__learning_rate=3e-3,
    )
    return cfg, train_config(cfg)


@pytest.fixture(scope="module")
def suite(run):
    """Two paradigms of held-out sentences against the same with their words in reverse."""
    texts = [
        text
        for document in corpus.read_documents(run[0].data, "validation")
        for text in corpus.split_sentences(document)
    ]
    texts = texts[:40]
    assert len(texts) == 40
    sentences = [t for text in texts for t in (text, " ".join(reversed(text.split())))]
    return texts, minimal_pairs.Suite(
        "order",
        "ab" * 32,
        [
            minimal_pairs.Paradigm("order_1", "order", sentences[:40]),
            minimal_pairs.Paradigm("order_2", "order", sentences),
        ],
    )


def test_a_run_is_loaded_as_it_was_trained(run):
    cfg, result = run
    loaded = trained_run.load(cfg.workdir, {"eval.batch_size": 20})
    assert loaded.cfg.eval.batch_size == 20 and fields.fingerprint(loaded.cfg) == fields.fingerprint(cfg)
    assert loaded.step == 30
    columns = split_scores.collect_columns(loaded.cfg, loaded.program, loaded.state, loaded.load_data().validation)
    again = split_scores.summarize(columns, loaded.program.objective.scores)
    assert again["loss"] == pytest.approx(result["evaluation"]["loss"], rel=1e-6)


def parts(texts, suite=None, count=None):
    """The sentences, and the first so many paradigms of the suite."""
    held_out = [EvaluationCase("pseudo_likelihood", "all", texts)] if texts else []
    return [*held_out, *(minimal_pairs.list_cases(suite)[:count] if suite else [])]


def test_judging_writes_what_is_measured_and_does_nothing_twice(run, suite):
    cfg, _ = run
    (texts, order), path = suite, Path(cfg.workdir, "evaluations.json")
    path.unlink(missing_ok=True)
    loaded = trained_run.load(cfg.workdir, {})
    first = evaluation_tasks.evaluate(loaded, parts(texts, order, 1))
    assert RunDirectory(cfg.workdir).read_evaluations() == first and (first["step"], first["fingerprint"]) == (
        30,
        fields.fingerprint(cfg),
    )
    score = forward_passes.make_scorer(loaded.program.model, loaded.program.partitioner, loaded.state)
    by_hand = pseudo_likelihood.score_sentences(
        score, pseudo_likelihood.build_queries(loaded.tokenizer, order.paradigms[0].sentences, 32), 8
    )
    paradigm = first["evaluations"]["minimal_pairs"]["order-ababab/order_1"]
    assert minimal_pairs.compute_accuracy(by_hand).items() <= paradigm.items()
    assert first["evaluations"]["pseudo_likelihood"]["all"]["sentences"] == len(texts)
    assert first["summary"]["minimal_pairs"]["order-ababab"]["overall"]["pairs"] == 20
    before = path.stat().st_mtime_ns
    assert evaluation_tasks.evaluate(loaded, parts(texts, order, 1)) == first and path.stat().st_mtime_ns == before

    first["evaluations"]["pseudo_likelihood"]["all"]["mark"] = 1
    RunDirectory(cfg.workdir).write_evaluations(first)  # kept: not done again
    more = evaluation_tasks.evaluate(loaded, parts(texts, order))
    assert more["evaluations"]["pseudo_likelihood"]["all"]["mark"] == 1
    assert more["evaluations"]["minimal_pairs"].keys() == {"order-ababab/order_1", "order-ababab/order_2"}
    overall = more["summary"]["minimal_pairs"]["order-ababab"]["overall"]
    assert more["summary"]["minimal_pairs"]["order-ababab"]["phenomena"]["order"] == overall and overall["pairs"] == 60
    two = evaluation_tasks.evaluate(loaded, parts([], order._replace(sha256="cd" * 32), 1))["summary"]["minimal_pairs"]
    assert two["order-ababab"]["overall"] == overall and two["order-cdcdcd"]["overall"]["pairs"] == 20
    more = RunDirectory(cfg.workdir).read_evaluations()
    fewer = evaluation_tasks.evaluate(loaded, parts(texts[:5]))["evaluations"]
    assert fewer["pseudo_likelihood"]["all"]["sentences"] == 5
    assert fewer["minimal_pairs"] == more["evaluations"]["minimal_pairs"]

    later = evaluation_tasks.evaluate(loaded._replace(step=31), parts(texts[:5]))  # of another state nothing is kept
    assert later["step"] == 31 and later["evaluations"].keys() == {"pseudo_likelihood"} and later["summary"] == {}


def test_a_finished_run_is_asked_what_its_config_names_and_nothing_twice(run):
    """Its further masking rates: the evaluation's own rate gives the evaluation again."""
    cfg, result = run
    Path(cfg.workdir, "evaluations.json").unlink(missing_ok=True)
    assert [part.name for part in evaluation_tasks.list_missing_cases(cfg)] == ["0.3"]
    answers = evaluation_tasks.finish_evaluations(cfg)["evaluations"]
    assert evaluation_tasks.list_missing_cases(cfg) == [] and answers.keys() == {"mask_rates"}
    assert answers["mask_rates"]["0.3"]["predictions"] > 1.5 * result["evaluation"]["predictions"]
    before = Path(cfg.workdir, "evaluations.json").stat().st_mtime_ns
    assert evaluation_tasks.finish_evaluations(cfg)["evaluations"] == answers
    assert Path(cfg.workdir, "evaluations.json").stat().st_mtime_ns == before


def test_what_cannot_be_judged_is_told(run, tmp_path):
    cfg, _ = run
    with pytest.raises(errors.ConfigError, match=r"^run '.*/b': expected the directory of a run.*did you mean '.*/a'"):
        trained_run.load(str(Path(cfg.workdir).parent / "b"), {})
    with pytest.raises(errors.ConfigError, match=r"^config.mask.rate = 0.4: expected what the run was trained with"):
        trained_run.load(cfg.workdir, {"mask.rate": 0.4})
    with pytest.raises(errors.ConfigError, match=r"^config.eval.batch_size = 6: expected a multiple of 4"):
        trained_run.load(cfg.workdir, {"eval.batch_size": 6})
    with pytest.raises(errors.ConfigError, match=r"^config.eval.batch_size = -4: expected at least 1"):
        trained_run.load(cfg.workdir, {"eval.batch_size": -4})
    with RunDirectory(cfg.workdir).lock(), pytest.raises(errors.ConfigError, match="another process"):
        trained_run.load(cfg.workdir, {})
    shutil.copy(Path(cfg.workdir, "config.json"), tmp_path)
    shutil.copytree(Path(cfg.workdir, "tokenizer"), tmp_path / "tokenizer")
    with pytest.raises(errors.ConfigError, match=r"it has none yet$"):
        trained_run.load(str(tmp_path), {})
    saved = RunDirectory(tmp_path).read_identity()
    of_another = saved | {"config": saved["config"] | {"model.bidirectional": True}}
    files.write_json_with_digest(tmp_path / "config.json", of_another)
    with pytest.raises(errors.ConfigError, match=r"made by another version, whose config has model.bidirectional"):
        trained_run.load(str(tmp_path), {})
    files.write_json_with_digest(tmp_path / "config.json", saved | {"data": saved["data"] | {"tokenizer": "0" * 64}})
    with pytest.raises(errors.ConfigError, match=r"tokenizer/wordpiece.txt is damaged: it is not what was written$"):
        trained_run.load(str(tmp_path), {})


@pytest.mark.slow
def test_the_command_prints_both_tables_and_errors_in_one_line(run, suite, tmp_path, capsys):
    cfg, _ = run
    texts, paradigm = suite[0], suite[1].paradigms[1]
    good, bad = paradigm.sentences[::2], paradigm.sentences[1::2]
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "order.jsonl").write_text(
        "".join(
            json.dumps({"sentence_good": g, "sentence_bad": b, "linguistics_term": "order"}) + "\n"
            for g, b in zip(good, bad, strict=True)
        )
    )
    (tmp_path / "held.txt").write_text("\n".join(texts))
    flags = [f"--blimp={folder}", f"--sentences={tmp_path}/held.txt", "--max_sentences=7", "--max_pairs=30"]
    evaluate.main(["evaluate", cfg.workdir, f"{cfg.workdir}/", *flags])
    printed = capsys.readouterr().out
    assert printed.count(f"written: {cfg.workdir}/evaluations.json") == 2
    kept = RunDirectory(cfg.workdir).read_evaluations()
    (held,) = kept["evaluations"]["pseudo_likelihood"].values()
    overall = next(one["overall"] for one in kept["summary"]["minimal_pairs"].values() if one["suite"] == "words")
    assert held["sentences"] == 7 and overall["pairs"] == 30
    shown = "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * overall[f"pll_accuracy{end}"] for end in ("", "_low", "_high")))
    assert shown in next(line for line in printed.splitlines() if "| overall" in line)
    perplexity = f"{held['pll_word_l2r']['token_perplexity']:,.2f} ["
    assert perplexity in next(line for line in printed.splitlines() if "| PLL-word-l2r" in line)
    assert "paper" not in printed  # the papers' values are of the whole benchmark
    for words, message in (
        ((cfg.workdir, "--blimp=absent"), "blimp = 'absent': expected a folder"),
        ((cfg.workdir, "--suite=a"), "--data = '': expected the folder"),
        ((cfg.workdir, "--paradigms=order"), "--paradigms = 'order': expected --blimp"),
        ((), "mlm evaluate: the following arguments are required: RUN"),
    ):
        assert get_refusal(evaluate.main, ["evaluate", *words]).startswith(message)


@pytest.mark.exhaustive
def test_a_folder_is_a_row_beside_a_run_and_is_left_as_it_was(run, tmp_path, monkeypatch, capsys):
    cfg, _ = run
    monkeypatch.chdir(tmp_path)
    folder = make_folders(tmp_path)["bert"]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "pairs").mkdir()
    pair = {"sentence_good": "the apple is red", "sentence_bad": "the red is apple", "linguistics_term": "order"}
    (tmp_path / "pairs" / "order.jsonl").write_text(f"{json.dumps(pair)}\n" * 3)
    flags = ["--blimp=pairs", "--max_pairs=3"]
    evaluate.main(["evaluate", str(folder), cfg.workdir, *flags])
    shown = capsys.readouterr().out
    assert f"written: {cfg.workdir}/evaluations.json" in shown and "written: runs/bert/evaluations.json" in shown
    assert [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("|")][-2:] == [
        str(folder),
        cfg.workdir,
    ]
    stored = RunDirectory("runs/bert").read_evaluations()
    path = tmp_path / "runs" / "bert" / "evaluations.json"
    written = path.stat().st_mtime_ns
    assert mlm.evaluate(mlm.load(folder), blimp="pairs", max_pairs=3) == stored and path.stat().st_mtime_ns == written
    loaded, model = trained_run.load(str(folder), {}), mlm.load(folder)
    case = EvaluationCase("pseudo_likelihood", "all", ["the apple is red", "the sky"])
    nats = -model.pseudo_log_likelihood(case.inputs).sum()
    result = evaluation_tasks.evaluate(loaded, [case])["evaluations"]["pseudo_likelihood"]["all"]
    assert result["pll"]["token_nats"] * result["tokens"] == pytest.approx(nats, rel=1e-5)
    for flag, line in (
        ((), "no held-out text"),
        (("--anisotropy",), "no held-out text"),
        (("--milestones",), "a run's directory"),
        ((*flags, f"workdir={cfg.workdir}"), "expected a directory without a run"),
    ):
        assert line in get_refusal(evaluate.main, ["evaluate", str(folder), *flag])
    text = tmp_path / "text.txt"
    text.write_text("The horse slept .")
    for change in ({"workdir": str(folder)}, {"init.run": str(folder)}):
        changed = {"data.path": str(text), "workdir": "runs/b", "train.steps": 1} | change
        assert "init.hub takes a Hugging Face folder" in get_refusal(mlm.train, changed)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    encoder = change_tensors(folder, lambda name, x: [(name, x)] if name.startswith("bert.") else [])
    assert "an encoder alone" in get_refusal(evaluate.main, ["evaluate", str(encoder), *flags])


def test_the_evaluation_of_the_documentation_is_in_the_flags_and_in_the_tables(run, tmp_path, monkeypatch, capsys):
    """One file and one entry: the command, and the table of several runs, know it by the registry alone."""
    cfg, _ = run
    _, (_, flags), (_, file) = read_example("An evaluation").values()
    module = types.ModuleType("unknown_tokens")
    exec(file, module.__dict__)
    monkeypatch.setitem(evaluation_tasks.EVALUATIONS, "unknown_tokens", make_evaluation(module))
    (row,) = re.findall(r'"unknown_tokens": (\("vocabulary".*\)),', flags)
    monkeypatch.setitem(evaluate.FLAGS, "unknown_tokens", eval(row, {"Flag": Flag}))
    assert "--unknown_in GLOBS" in evaluate.make_parser().format_help()
    (tmp_path / "a.txt").write_text("the zyzzyva")
    evaluate.main(["evaluate", cfg.workdir, f"--unknown_in={tmp_path / 'a.txt'}"])
    assert "| tokens |" in re.sub(" +", " ", capsys.readouterr().out)
    (point,) = sweep_state.load_results([cfg])[0]
    rows, columns = summary.build_table([point], [Column("name", "name")], lambda seeds: {"name": "a"})
    (column,) = (column for column in columns if column.name == "unknown_tokens")
    stored = point["evaluations"]["unknown_tokens"]["texts"]
    assert column.title == "unknown tokens (%)" and f"of {stored['tokens']} tokens" in column.note
    assert rows[0]["unknown_tokens"].mean == pytest.approx(100 * stored["unknown"] / stored["tokens"])
