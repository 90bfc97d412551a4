"""One table is enough: what is held out and inferred of it, and the same table with predictions."""

import csv
import json
import random
import shutil

import pytest
from hub_folders import make_head_folder
from small import get_refusal

import mlm
from mlm.cli import finetune, use
from mlm.data.rows import pack
from mlm.data.tasks import splits, table_task, task_file, tasks
from mlm.inference import prediction

WORDS = ["the", "old", "horse", "sleeps", "near", "a", "river"]
COLUMNS = {"text": "", "text_pair": "", "negative": "", "label": "label"}


def draw_rows(count=80, pair=False, label=lambda draw, text: draw.choice("ab")) -> list[dict]:
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 5))) for _ in range(1 + pair)]
        rows.append(dict(zip(("one", "two"), texts, strict=False)) | {"label": label(draw, texts[0])})
    return rows


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def read_task(path):
    """(The config's fields, (texts or words, label) of the examples of each split.)"""
    read = task_file.read_task_file("--task", str(path))
    cfg = tasks.resolve_task(read.fields)
    source = splits.open_task(cfg)
    return cfg, {
        split: [(example.words or example.texts, example.label) for example in read_split()]
        for split, read_split in source.items()
    }


@pytest.mark.parametrize(
    ("label", "objective", "found"),
    [
        (lambda draw, text: draw.choice(["good", "bad"]), "classification", "2 classes: bad, good"),
        (lambda draw, text: draw.choice("12345"), "classification", "5 classes: 1, 2, 3, 4, 5"),
        (lambda draw, text: draw.randrange(100), "regression", "numbers from 1 to 97"),
        (lambda draw, text: draw.choice([0.5, 1.5]), "regression", "numbers from 0.5 to 1.5"),
        (
            lambda draw, text: " ".join("ON"[word in "river"] for word in text.split()),
            "tagging",
            "a tag for each word: N, O",
        ),
        (lambda draw, text: " ".join("O" if word != "a" else "B-X" for word in text.split()), "tagging", "B-X, O"),
        (lambda draw, text: " ".join("Target" for _ in text.split()[1:]) + " O", "tagging", "O, Target"),
    ],
)
def test_all_rows_are_examples_of_what_the_labels_are(tmp_path, label, objective, found):
    rows = draw_rows(label=label)
    task = table_task.write_task(write_csv(tmp_path / "t.csv", rows), tmp_path, COLUMNS | {"text": "one"}, 0.2, 0)
    cfg, examples = read_task(task.path)
    assert cfg.objective == objective and found in task.description
    assert bool(cfg.data.labelled.scheme) == ("B-X" in found)
    split = lambda cell: tuple(cell.split())
    convert = {"regression": float, "tagging": split}.get(objective, str)
    given = [((split(row["one"]) if objective == "tagging" else (row["one"],)), convert(row["label"])) for row in rows]
    assert sorted(examples["train"] + examples["validation"]) == sorted(given)
    assert f"{len(examples['validation'])} held out" in task.description
    classes = splits.list_classes(cfg)
    shutil.rmtree(task.path.parent)  # of which a trained model needs nothing
    assert pack.build_dataset_info(cfg, 9).classes == classes


def test_what_is_held_out_has_labels_that_the_others_have(tmp_path):
    """Each of many labels once or twice: a long tail."""
    rows = draw_rows(60, label=lambda draw, text: f"class {draw.randrange(30)}")
    task = table_task.write_task(write_csv(tmp_path / "t.csv", rows), tmp_path, COLUMNS, 0.5, 0)
    examples = read_task(task.path)[1]
    assert {label for _, label in examples["validation"]} <= {label for _, label in examples["train"]}
    assert len(examples["train"]) + len(examples["validation"]) == 60


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [(["B-X I-X O", "O O"], "bio"), (["I-X O O", "O O"], ""), (["B-X E-X O", "S-X O"], ""), ([", NN NN", "DT NN"], "")],
)
def test_tags_of_words_have_the_scheme_that_they_keep(tmp_path, tags, scheme):
    rows = [{"text": " ".join(f"w{i}" for _ in row.split()), "label": row} for i in range(20) for row in tags]
    task = table_task.write_task(write_csv(tmp_path / "t.csv", rows), tmp_path, COLUMNS, 0.3, 0)
    cfg, examples = read_task(task.path)
    assert cfg.objective == "tagging" and cfg.data.labelled.scheme == scheme
    assert sum(map(len, examples.values())) == 40


def test_what_is_held_out_follows_from_texts_and_seed_alone(tmp_path):
    rows = draw_rows(300, pair=True)
    columns = COLUMNS | {"text": "one", "text_pair": "two"}

    def hold_out(name, rows, seed=0, share=0.3):
        task = table_task.write_task(write_csv(tmp_path / f"{name}.csv", rows), tmp_path, columns, share, seed)
        sides = {split: {texts for texts, _ in part} for split, part in read_task(task.path)[1].items()}
        assert not sides["train"] & sides["validation"]
        return sides["validation"]

    held_out = hold_out("a", rows)
    assert 0.15 < len(held_out) / len({(row["one"], row["two"]) for row in rows}) < 0.45
    assert hold_out("b", rows[:150]) < held_out
    assert hold_out("c", rows[::-1]) == held_out < hold_out("d", rows, share=0.6)
    assert hold_out("e", rows, seed=1) != held_out


def test_texts_that_belong_together_need_no_label_but_their_objective(tmp_path):
    rows = draw_rows(60, pair=True)
    columns, path = {"text": "one", "text_pair": "", "negative": "", "label": ""}, write_csv(tmp_path / "t.csv", rows)
    for more, fields in (({}, ("one",)), ({"text_pair": "two", "negative": "label"}, ("one", "two", "label"))):
        task = table_task.write_task(path, tmp_path, columns | more, 0.2, 0, "contrastive")
        cfg, sides = read_task(task.path)
        assert cfg.objective == "contrastive" and sides["validation"]
        found = [(texts, label) for side in sides.values() for texts, label in side]
        assert sorted(found) == sorted((tuple(row[name] for name in fields), None) for row in rows)


def test_formats_give_the_same_task_and_rows_without_text_or_label_are_counted(tmp_path):
    rows = draw_rows(label=lambda draw, text: draw.choice([1, 2]))
    floats = [row | {"label": float(row["label"]) if i % 2 else row["label"]} for i, row in enumerate(rows)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row | {"label": float(row["label"])}) + "\n" for row in rows))
    (tmp_path / "f").mkdir()
    tables = (
        write_csv(tmp_path / "t.csv", rows),
        write_csv(tmp_path / "f" / "t.csv", floats),
        str(tmp_path / "t.jsonl"),
    )
    made = [table_task.write_task(path, tmp_path, COLUMNS, 0.2, 0).path for path in tables]
    assert len({*made}) == 1
    more = [*rows, {"one": "", "label": "1"}, {"one": "the horse", "label": ""}, {"one": "a cow", "label": "nan"}]
    task = table_task.write_task(write_csv(tmp_path / "t.csv", more), tmp_path, COLUMNS, 0.2, 0)
    assert task.path == made[0] and task.description.endswith("3 rows without text or label left out")


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        (draw_rows(), {"label": "labl"}, "t.csv, whose first line names the columns: no column 'labl'"),
        (draw_rows(), {"text": "on"}, "--text = 'on': expected a column of texts"),
        (draw_rows(label=lambda draw, text: "a"), {}, "two different labels or more"),
        (draw_rows(9), {}, "of 9 texts (2 classes) --held_out=0.001 leaves one side empty"),
    ],
)
def test_a_table_that_is_no_task_is_refused_in_a_line(tmp_path, rows, columns, said):
    path = write_csv(tmp_path / "t.csv", rows)
    assert said in get_refusal(table_task.write_task, path, tmp_path, COLUMNS | columns, 0.001, 0)
    (tmp_path / "t.txt").write_text("a line\n")
    refused = get_refusal(table_task.write_task, str(tmp_path / "t.txt"), tmp_path, COLUMNS, 0.1, 0)
    assert "the names of its columns" in refused


def test_a_table_comes_back_with_all_rows_and_columns_and_predictions(plain, tmp_path):
    folder = make_head_folder(plain, tmp_path, "bert-classify")
    model, out = mlm.load(folder), tmp_path / "out.csv"
    rows = [{"id": str(i), "text": row["one"], "label": row["label"]} for i, row in enumerate(draw_rows(9))]
    rows[4]["text"], rows[5]["label"], rows[6]["label"] = "", "two\rrows", 'a "quote",\nand more'
    path = write_csv(tmp_path / "new.csv", rows)
    use.main(["predict", str(folder), path, f"--out={out}"])
    found = list(csv.DictReader(out.open(newline="")))
    assert [{name: row[name] for name in rows[0]} for row in found] == rows
    names = [name for name in found[0] if name.startswith("p(")]
    for row in found:
        if not row["text"]:
            assert row["predicted"] == "" and not any(row[name] for name in names)
            continue
        best = model.predict([row["text"]])[0]
        probabilities = {name[2:-1]: float(row[name]) for name in names}
        assert row["predicted"] == best.label == max(probabilities, key=probabilities.get)
        assert sum(probabilities.values()) == pytest.approx(1) and probabilities[best.label] == pytest.approx(
            best.probability
        )
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), tmp_path / "new.parquet")
    by_format = [
        list(prediction.predict_table(model, str(tmp_path / f"new.{ending}"))) for ending in ("csv", "parquet")
    ]
    assert by_format[0] == by_format[1]
    for one, other in zip(prediction.predict_table(model, path, batch_rows=2), by_format[0], strict=True):
        probabilities = [[row[name] for name in names if row[name]] for row in (one, other)]
        assert one["predicted"] == other["predicted"] and probabilities[0] == pytest.approx(probabilities[1])
    for change, said in (
        ({"text": "words", "id": "name"}, "predict: text_column = 'text': expected a column of texts"),
        ({"id": "predicted"}, "no column of this name"),
    ):
        wrong = write_csv(
            tmp_path / "wrong.csv", [{change.get(name, name): x for name, x in row.items()} for row in rows]
        )
        assert said in get_refusal(use.main, ["predict", str(folder), wrong])
    (tmp_path / "lines.txt").write_text("the old horse\n")
    for absent in (f"{tmp_path}/nwe.csv", f"{tmp_path}/lines.txt"):  # no texts, though they might be
        message = get_refusal(use.main, ["predict", str(folder), absent])
        assert "one table that is there" in message and ("did you mean" in message) == absent.endswith("nwe.csv")
    before = out.read_text()
    assert "--out" in get_refusal(use.main, ["predict", str(folder), str(out), f"--out={out}"])
    assert out.read_text() == before


@pytest.mark.parametrize(
    "content", ["text,label\n", '{"text": "a \\ud800 b", "label": "x"}\n', "text,label,text\na,b,c\n"]
)
def test_a_table_that_cannot_be_read_or_has_no_rows_is_refused_in_a_line(plain, tmp_path, content):
    folder = make_head_folder(plain, tmp_path, "bert-classify")
    path = tmp_path / ("t.csv" if content[0] == "t" else "t.jsonl")
    path.write_text(content)
    assert str(path) in get_refusal(use.main, ["predict", str(folder), str(path)])
    get_refusal(table_task.write_task, str(path), tmp_path, COLUMNS, 0.2, 0)


def test_rows_with_other_values_than_texts_come_back(plain, tmp_path, capsys):
    """Also a key that the first row lacks, null and NaN; and one long text is no file."""
    folder, path = str(make_head_folder(plain, tmp_path, "bert-classify")), tmp_path / "t.jsonl"
    path.write_text('{"text": null, "a": NaN}\n{"text": "the old horse", "a": [1], "later": 2}\n')
    for out in ("out.csv", "out.jsonl"):
        use.main(["predict", folder, str(path), f"--out={tmp_path / out}"])
    assert get_refusal(use.main, ["predict", folder, str(path), str(path)]).startswith(
        f"text = '{path}': expected texts"
    )
    assert (tmp_path / "out.csv").read_text().splitlines()[0].startswith("text,a,predicted,p(")
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first["a"] is None and first["predicted"] is None and second["later"] == 2 and second["predicted"]
    (tmp_path / "half.jsonl").write_text('{"text": "the horse", "half": "\\ud800"}\n')
    for out in ("half.csv", "back.jsonl"):
        use.main(["predict", folder, str(tmp_path / "half.jsonl"), f"--out={tmp_path / out}"])
    assert json.loads((tmp_path / "back.jsonl").read_text())["half"] == "\ud800"
    use.main(["predict", folder, str(path)])
    use.main(["predict", folder, "the old horse sleeps near the river . " * 12])
    assert "the old horse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text=a"], "--text = 'a': expected a table beside it"),
        (["t.csv", "--task=t.toml"], "--task = 't.toml': expected none beside t.csv"),
        (["t.csv", "data.task=topic"], "finetune = 't.csv': expected no data.task beside it"),
        (["t.csv", "--negative=a"], "--negative = 'a': expected none without objective=contrastive"),
        (["t.csv", "--negative=a", "objective=contrastive"], "--negative = 'a': expected --text_pair beside it"),
        (["t.csv", "objective=contrastive", "--label=a"], "--label = 'a': expected none beside objective=contrastive"),
    ],
)
def test_flags_of_a_table_go_with_a_table_alone(words, said):
    assert said in get_refusal(finetune.main, ["finetune", "runs/a", *words])
