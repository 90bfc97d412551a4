"""The corpus: what is a document, which split it is in, and what happens to bad files."""

import dataclasses
import gzip
import random
import tracemalloc

import pytest
from small import drawn_config

from mlm.base import config, errors, warnings_
from mlm.base.special import CLS, SEP
from mlm.data.language import grammar
from mlm.data.rows import pack
from mlm.data.text import corpus, files


@pytest.fixture(autouse=True)
def fresh_warnings():
    warnings_.warn_once.cache_clear()


def texts(count, seed=0):
    draw = random.Random(seed)
    return [f"Document {i} says " + " ".join(draw.choices("abcdefgh", k=20)) + "." for i in range(count)]


def write_corpus(folder, documents, boundary="file", **more):
    """A corpus of one document a file."""
    folder.mkdir(exist_ok=True)
    for i, document in enumerate(documents):
        (folder / f"{i:03}.txt").write_text(document)
    return config.Data(corpus="text", path=f"{folder}/*.txt", document_boundary=boundary, **more)


def read_splits(data):
    splits = tuple(list(corpus.read_documents(data, split)) for split in corpus.SPLITS)
    assert splits == tuple([text for name, text in corpus.read_splits(data) if name == one] for one in corpus.SPLITS)
    return splits


def test_each_document_is_in_one_split_whatever_the_order(tmp_path):
    documents = texts(200)
    train, validation = read_splits(write_corpus(tmp_path / "a", documents, validation_fraction=0.2))
    assert sorted(train + validation) == sorted(documents) and not set(train) & set(validation)
    assert 20 < len(validation) < 60
    backwards = read_splits(write_corpus(tmp_path / "b", documents[::-1], validation_fraction=0.2))
    assert set(backwards[0]) == set(train) and backwards[0] != train


def test_equal_documents_stay_in_one_split(tmp_path):
    train, validation = read_splits(
        write_corpus(tmp_path / "a", [t for t in texts(60) for _ in range(3)], validation_fraction=0.3)
    )
    assert validation and not set(train) & set(validation)
    assert all(documents.count(t) == 3 for documents in (train, validation) for t in documents)


def test_a_larger_held_out_share_keeps_what_was_held_out(tmp_path):
    small = read_splits(write_corpus(tmp_path / "a", texts(200), validation_fraction=0.1))[1]
    large = read_splits(write_corpus(tmp_path / "a", texts(200), validation_fraction=0.3))[1]
    assert set(small) < set(large)


@pytest.mark.parametrize("boundary, count", [("file", 1), ("blank_line", 4), (" = [^=]+ = ", 2)])
def test_boundaries(tmp_path, boundary, count):
    (tmp_path / "a.txt").write_text(" \n = One = \n \n = = Part = = \n text\n\n\n = Two = \n \n more \n")
    found = [one.text for one in files.read_documents([str(tmp_path / "a.txt")], files.make_boundary("", boundary))]
    assert len(found) == count
    assert "".join("".join(found).split()) == "=One===Part==text=Two=more"
    if count == 2:
        assert found[0].startswith("= One =") and found[1].startswith("= Two =")


def test_bad_bytes_and_empty_files_are_counted_with_file_and_offset(tmp_path, caplog):
    documents = texts(50)
    data = write_corpus(tmp_path / "a", documents, validation_fraction=0.2)
    (tmp_path / "a" / "bad.txt").write_bytes(b"good line\nnot \xff good\nnor \xfe this\n")
    (tmp_path / "a" / "empty.txt").write_text(" \n\n")
    train, validation = read_splits(data)
    assert len(train + validation) == 51 and any("not \ufffd good" in t for t in train + validation)
    assert "2 lines with bytes that are not UTF-8" in caplog.text and "bad.txt at byte 14" in caplog.text
    assert "1 empty files" in caplog.text and "empty.txt at byte 0" in caplog.text


def test_a_cut_gzip_file_is_an_error_that_names_it(tmp_path):
    whole = gzip.compress("\n".join(texts(500)).encode())
    (tmp_path / "a.gz").write_bytes(whole[:-100])
    with pytest.raises(errors.ConfigError, match=r"a\.gz on from byte \d+"):
        list(files.read_documents([str(tmp_path / "a.gz")], files.make_boundary("", "file")))


def test_a_split_without_documents_is_an_error(tmp_path):
    with pytest.raises(
        errors.ConfigError, match=r"no document in the validation split.*config\.data\.document_boundary"
    ):
        read_splits(write_corpus(tmp_path / "a", texts(1), validation_fraction=1e-9))
    with pytest.raises(errors.ConfigError, match="no document in the train split"):
        read_splits(write_corpus(tmp_path / "b", [" \n"]))


def test_held_out_files_are_the_validation_split_and_leave_training(tmp_path, caplog):
    held_out = write_corpus(tmp_path / "held", texts(5, seed=1))
    data = write_corpus(tmp_path / "a", texts(20) + texts(5, seed=1)[:3], validation_path=held_out.path)
    train, validation = read_splits(data)
    assert validation == texts(5, seed=1) and train == texts(20)
    assert "3 training documents also stand in the validation split" in caplog.text


@pytest.mark.parametrize("own_file", [False, True])
def test_a_search_chooses_on_a_part_of_training_that_is_not_held_out(tmp_path, own_file):
    held_out = {"validation_path": write_corpus(tmp_path / "held", texts(5, seed=1)).path} if own_file else {}
    data = write_corpus(tmp_path / "a", texts(200), validation_fraction=0.2, **held_out)
    train, validation = read_splits(data)
    rest, chosen_by = read_splits(dataclasses.replace(data, search_fraction=0.2))
    assert sorted(rest + chosen_by) == sorted(train) and not set(rest) & set(chosen_by)
    assert 15 < len(chosen_by) < 60 and not set(validation) & {*rest, *chosen_by}


def test_fingerprint_follows_content_and_division_only(tmp_path):
    data = write_corpus(tmp_path / "a", texts(5))
    assert corpus.compute_fingerprint(data) == corpus.compute_fingerprint(write_corpus(tmp_path / "b", texts(5)))
    others = [
        write_corpus(tmp_path / "c", [*texts(4), texts(5)[4].replace("4", "5")]),
        write_corpus(tmp_path / "d", texts(4)),
        dataclasses.replace(data, document_boundary="blank_line"),
        dataclasses.replace(data, validation_fraction=0.1),
        dataclasses.replace(data, search_fraction=0.1),
        *(dataclasses.replace(data, validation_path=f"{tmp_path}/a/00{i}.txt") for i in range(2)),
    ]
    assert len({corpus.compute_fingerprint(other) for other in [data, *others]}) == 8


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    with open(tmp_path / "a.txt", "w") as file:
        for i in range(8000):
            file.write(f"{i} " + "word " * 200 + "\n\n")
    data = config.Data(corpus="text", path=f"{tmp_path}/a.txt", document_boundary="blank_line")
    tracemalloc.start()
    count = sum(1 for _ in corpus.read_documents(data, "train"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count > 7000 and peak < 2**20  # of 8 MB


def test_a_long_document_is_cut_between_characters_and_counted(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(files, "MAX_DOCUMENT_LENGTH", 101)
    (tmp_path / "a.txt").write_text("é€" * 300, encoding="utf-8")
    found = [one.text for one in files.read_documents([str(tmp_path / "a.txt")], files.make_boundary("", "file"))]
    assert "".join(found) == "é€" * 300 and max(map(len, found)) <= 101
    assert files.LONG_DOCUMENTS in caplog.text and "not UTF-8" not in caplog.text


def test_a_tfds_data_set_of_the_same_texts_is_the_same_corpus(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    import tensorflow_datasets as tfds

    class TextDataset(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def __init__(self, name, splits):
            self.name, self._splits = name, splits
            super().__init__(data_dir=str(tmp_path / "out"))

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(documents) for split, documents in self._splits.items()}

        def _generate_examples(self, documents):
            yield from ((number, {"text": text}) for number, text in enumerate(documents))

    documents = [*texts(40), "Zażółć gęślą jaźń 日本語"]
    source = write_corpus(tmp_path / "a", documents)
    for name, splits in (("own", {}), ("own_held", {"validation": texts(5, seed=1)})):
        TextDataset(name, {"train": documents, **splits}).download_and_prepare(file_format="array_record")
    data = config.Data(corpus="tfds", tfds_name="own", tfds_dir=str(tmp_path / "out"))
    assert [sorted(part) for part in read_splits(data)] == [sorted(part) for part in read_splits(source)]
    held = dataclasses.replace(data, tfds_name="own_held")
    assert sorted(read_splits(held)[1]) == texts(5, seed=1) and len(read_splits(held)[0]) == 41
    assert corpus.compute_fingerprint(data) != corpus.compute_fingerprint(held)
    for changes, message in [
        ({"tfds_field": "txt"}, "tfds_field = 'txt'.*did you mean 'text'"),
        ({"tfds_name": "imdb_reviewz"}, "tfds_name.*did you mean 'imdb_reviews'"),
    ]:
        with pytest.raises(errors.ConfigError, match=message):
            read_splits(dataclasses.replace(data, **changes))


def make_config(tmp_path="", **knobs):
    return drawn_config(tmp_path, **{f"data__language__{name}": value for name, value in knobs.items()})


def test_the_language_is_drawn_from_its_seed_and_its_splits_are_apart():
    train, validation = read_splits(make_config().data)
    assert len(train) == 300 and len(validation) == 80 and not set(train) & set(validation)
    assert read_splits(make_config().data) == (train, validation)
    more, same = read_splits(make_config(train_documents=600).data)
    assert more[:300] == train and same == validation and not set(more) & set(validation)
    other, held_out = read_splits(make_config(seed=1).data)
    assert not set(other) & set(train) and not set(held_out) & set(validation)
    prints = {
        corpus.compute_fingerprint(make_config(**knobs).data)
        for knobs in (
            {},
            {"seed": 1},
            {"topic_strength": 1.0},
            {"train_documents": 301},
            {"validation_documents": 81},
            {"max_words": 29},
        )
    }
    assert len(prints) == 6 and corpus.compute_fingerprint(make_config().data) in prints


def test_documents_drawn_for_both_splits_are_held_out(caplog):
    """Short documents of few words come again by chance."""
    train, validation = read_splits(make_config(max_words=8, num_topics=1, num_names=1, zipf_exponent=4.0).data)
    assert len(train) < 300 and not set(train) & set(validation) and "also stand in the validation split" in caplog.text


def test_a_document_of_the_language_is_a_row_and_every_word_has_an_entry(tmp_path):
    cfg = make_config(tmp_path, train_documents=30)
    words = grammar.build_grammar(cfg.data.language).words
    for split, texts_ in zip(corpus.SPLITS, read_splits(cfg.data), strict=True):
        rows = pack.load_dataset(cfg)
        assert sorted(rows.tokenizer.pieces[5:]) == sorted(words) and "Anna" in rows.tokenizer.pieces
        assert len(set(" ".join(texts_).split())) < len(words)  # few documents do not show them all
        for ids, text in zip(getattr(rows, split)["ids"], texts_, strict=True):
            used = len(text.split()) + 2
            assert ids[0] == CLS and ids[used - 1] == SEP and not ids[used:].any()
            assert rows.tokenizer.decode(ids[1 : used - 1]) == text
