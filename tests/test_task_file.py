"""Task files: they say what flags say, for fine-tuning, prompts and similarities; faults name file and key; those that
the guides show are read.
"""

import re
import signal

import pytest
from small import get_refusal
from test_docs import FENCE, PAGES

from mlm.base import config, errors, fields
from mlm.base.fields import fill_derived_fields
from mlm.cli import evaluate, finetune
from mlm.data.tasks import splits, task_file, tasks
from mlm.evaluation import evaluation_tasks, few_shot, minimal_pairs, prompts, sentence_similarity
from mlm.evaluation import suite as suites
from mlm.training.run import finetuning_recipe

REVIEWS = """
format = "tsv"
path = "files"
train = "train.tsv"
dev = "dev.tsv"
text_column = 0
label_column = 1
labels = ["bad", "good"]

[prompt]
pattern = "{text} It was [MASK] ."
verbalizers = {good = "great", bad = "terrible"}
"""
PAIRS = """
name = "mine"
objective = "regression"
format = "csv"
test = "pairs.csv"
text_column = "a"
text_pair_column = "b"
label_column = "similarity"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    for name, count in (("train", 40), ("dev", 3)):
        lines = [f"w{n} w1\tgood\nw{n} w2\tbad\n" for n in range(count)]
        (tmp_path / "files" / f"{name}.tsv").write_text("".join(lines))
    (tmp_path / "reviews.toml").write_text(REVIEWS)
    (tmp_path / "pairs.csv").write_text("a,b,similarity\nw1,w2,0.5\nw3,w4,1\n")
    (tmp_path / "pairs.toml").write_text(PAIRS)
    return tmp_path


def test_a_task_file_says_what_flags_say(folder):
    found = task_file.read_task_file("--task", str(folder / "reviews.toml"))
    flags = {"format": "tsv", "train": "train.tsv", "dev": "dev.tsv", "text_column": "0", "label_column": "1"}
    said = {f"data.labelled.{name}": value for name, value in flags.items()} | {"data.labelled.labels": "bad,good"}
    said |= {"data.corpus": "task", "data.task": "own", "data.task_path": str(folder / "files")}
    cfg = fill_derived_fields(tasks.DERIVED_FIELDS, fields.override(config.Config(), said))
    assert found.name == "reviews" and tasks.resolve_task(found.fields) == cfg and cfg.objective == "classification"
    assert len(list(splits.open_task(cfg)["train"]())) == 80


def test_a_fine_tuning_records_the_file_and_the_command_line_overrides_it(folder, monkeypatch):
    class Resolved(Exception):
        pass

    def prepare(run, overrides, **options):
        raise Resolved(overrides, options)

    monkeypatch.setattr(finetuning_recipe, "prepare_finetuning", prepare)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(Resolved) as caught:
            finetune.main(["finetune", "run", f"--task={folder / 'reviews.toml'}", "data.labelled.text_column=1"])
        (from_file, from_command_line), options = caught.value.args
        file = task_file.read_task_file("--task", str(folder / "reviews.toml"))
        assert (from_file.origin, from_file.values) == (str(folder / "reviews.toml"), file.fields)
        assert from_command_line == ("command line", {"data.labelled.text_column": "1"})
        assert options["name"] == "reviews"
        with pytest.raises(errors.ConfigError, match=r"^--task = .*reviews.toml': expected no data.task beside it$"):
            finetune.main(["finetune", "run", f"--task={folder / 'reviews.toml'}", "data.task=sst2"])
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pattern =", "patern =", ": prompt: no key 'patern', expected one of .*; did you mean 'pattern'"),
        ("text_column = 0", "text_column = []", r": text_column = \[\]: expected a text or a number"),
        ('format = "tsv"', 'format = "tsv', r": expected TOML: .* \(at line 2, column \d+\)"),
        ('"train.tsv"', '"trian.tsv"', ": train = 'trian.tsv': expected a file in .*; did you mean 'train.tsv'"),
    ],
)
def test_faults_are_one_line_with_file_and_key(folder, old, new, said):
    path = folder / "reviews.toml"
    assert old in REVIEWS
    path.write_text(REVIEWS.replace(old, new, 1))
    line = get_refusal(task_file.read_task_file, "--task", str(path))
    assert re.search(f"^{re.escape(str(path))}{said}", line) and "config." not in line


def test_a_prompt_of_one_s_own_is_asked_from_the_file_or_the_command_line(folder):
    path = folder / "reviews.toml"
    task = prompts.read_task(str(path))
    assert task[1:3] == ("{text} It was [MASK] .", {"bad": "terrible", "good": "great"})
    assert task.dev[:2] == [["w0 w1", 1], ["w0 w2", 0]] and task.name == "reviews"
    grid = few_shot.FewShotGrid((2,), (1e-3,), 10, 10)
    assert len(few_shot.list_cases(task, grid)) == 5
    words = [f"--prompt={path}", "--pattern={text} [MASK]", "--verbalizers=no,yes", "--few_shot"]
    args = evaluate.make_parser().parse_words(["run", *words, f"--sts={folder}/pairs.toml"])
    cases = evaluation_tasks.read_flags(args)(None)
    assert [case.task for case in cases] == ["sts", "zero_shot", *["few_shot"] * 5]
    assert cases[1].metadata == {
        "task": "reviews",
        "pattern": "{text} [MASK]",
        "verbalizers": {"bad": "no", "good": "yes"},
    }
    for old, new, arguments, said in (
        ("", "", ("tasks",), r"^--task_path = 'tasks': expected no folder, since .*reviews.toml says where"),
        ("{text} It", "It", (), r"^.*reviews.toml: prompt.pattern = 'It was \[MASK\] .': expected \{text\} once"),
        ("pattern =", "#", (), r"^--pattern = '': expected \{text\} once"),
        ("good =", "goud =", (), r"^.*reviews.toml: prompt.verbalizers: no label 'goud', .*; did you mean 'good'"),
        ('good = "great", ', "", (), r"^.*: prompt.verbalizers = \['bad'\]: expected also good$"),
        ("", "", ("", "", ("a",)), r"^--verbalizers = 'a': expected a word for each label of reviews, .*: bad, good$"),
        ('["bad", "good"]', '["bad", "good"]\nscores = ["exact"]', (), "scores = 'exact': expected one of accuracy"),
        ('labels = ["bad", "good"]', 'objective = "regression"', (), r": objective = 'regression': expected class"),
    ):  # fmt: skip
        path.write_text(REVIEWS.replace(old, new, 1))
        assert re.search(said, get_refusal(prompts.read_task, str(path), *arguments))
    path.write_text(REVIEWS.partition("[prompt]")[0])
    assert prompts.read_task(str(path), "", "{text} [MASK]", ("no", "yes")).verbalizers == {"bad": "no", "good": "yes"}


def test_similarities_of_one_s_own_pairs(folder):
    (case,) = sentence_similarity.list_cases("--sts", str(folder / "pairs.toml"))
    assert case.name == "mine/test" and case.inputs["pairs"] == [["w1", "w2", 0.5], ["w3", "w4", 1.0]]
    for old, new, said in (
        ('text_pair_column = "b"', "", ": text_pair_column = '': expected the column of a second text"),
        ('test = "pairs.csv"', "", ": dev = '': expected a file of pairs, here or in test"),
        ('objective = "regression"', "", ": objective = 'classification': expected regression"),
    ):
        (folder / "pairs.toml").write_text(PAIRS.replace(old, new))
        with pytest.raises(errors.ConfigError, match=f"pairs.toml{said}"):
            sentence_similarity.list_cases("--sts", str(folder / "pairs.toml"))


def find_blocks(page, language):
    return [match["code"] for match in FENCE.finditer(PAGES[page]) if match["language"] == language]


def test_the_files_that_the_guides_show_are_read(tmp_path):
    (tmp_path / "reviews").mkdir()
    (*_, table), (reviews, *others) = (
        find_blocks("docs/guides/finetune.md", language) for language in ("text", "toml")
    )
    for name in ("train", "dev"):
        (tmp_path / "reviews" / f"{name}.csv").write_text(table)
    (tmp_path / "reviews.toml").write_text(reviews)
    task = prompts.read_task(str(tmp_path / "reviews.toml"))
    assert [*task.verbalizers] == ["animal", "other"] and len(task.train) == 2
    (tmp_path / "train.tsv").write_text("question\tanswer\tscore\nw1\tw2\t0.5\n")
    (tmp_path / "dev.tsv").write_text("question\tanswer\tscore\nw1\tw2\t0.5\n")
    for number, content in enumerate(others):
        (tmp_path / f"{number}.toml").write_text(content)
        read = task_file.read_task_file("--task", str(tmp_path / f"{number}.toml"))
        kind = read.fields["data.labelled.format"], read.fields.get("objective")
        kinds = ("tsv", "regression"), ("conll", None), ("tsv", "contrastive")
        assert (read.name, kind) == (f"{number}", kinds[number])
    (mine, pairs), (lines,) = (find_blocks("docs/guides/evaluate.md", language) for language in ("toml", "json"))
    (tmp_path / "pairs.tsv").write_text("first\tsecond\tsimilarity\nw1\tw2\t3\n")
    (tmp_path / "pairs.toml").write_text(pairs)
    assert sentence_similarity.list_cases("--sts", str(tmp_path / "pairs.toml"))[0].name == "pairs/dev"
    (tmp_path / "agree").mkdir()
    (tmp_path / "agree" / "number.jsonl").write_text(lines)
    (tmp_path / "mine.toml").write_text(mine)
    found = suites.read_suite(str(tmp_path / "mine.toml"), tmp_path)
    assert [task.name for task in found.tasks] == ["agreement", "reviews"]
    suite = minimal_pairs.read_suite(tmp_path / "agree")
    assert suite.name == "agree" and suite.paradigms[0].phenomenon == "agreement"
    keys = {*re.findall(r"\"(\w+)\":\s+\"\.\.\.\"", evaluate.make_parser().format_help())}
    assert keys == {"sentence_good", "sentence_bad", "linguistics_term"} == {*re.findall(r"\"(\w+)\":", lines)}
