"""Texts that are none: endless lines, expressions that never end. Memory stays bounded."""

import gzip
import tracemalloc

import pytest

from mlm.base import config, errors, fields, warnings_
from mlm.data.rows import pack, tokenization
from mlm.data.text import corpus, files
from mlm.training.run import loop, resolution


@pytest.fixture(autouse=True)
def fresh_warnings():
    warnings_.warn_once.cache_clear()
    warnings_.log_once.cache_clear()


def read(path, boundary="file"):
    limit = files.make_boundary("config.data.document_boundary", boundary)
    return [one.text for one in files.read_documents([str(path)], limit)]


def test_nuls_and_a_line_without_an_end_hold_little_memory(tmp_path, caplog):
    with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
        file.write(b"a word. ")
        for _ in range(32):
            file.write(bytes(2**20))
    with gzip.open(tmp_path / "b.gz", "wb") as file:
        file.write(b"x" * 2**25)
    tracemalloc.start()
    assert read(tmp_path / "a.gz") == ["a word."]
    boundary = files.make_boundary("", "file")
    assert sum(len(one.text) for one in files.read_documents([str(tmp_path / "b.gz")], boundary)) == 2**25
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * files.MAX_DOCUMENT_LENGTH
    assert "with NUL characters, which were left out" in caplog.text


def test_sentences_are_cut_at_spaces_lose_nothing_and_are_counted(monkeypatch):
    monkeypatch.setattr(corpus, "MAX_SENTENCE_LENGTH", 30)
    text = "a word " * 50 + "\n" + "x" * 100 + ". short. " + "y" * 29
    faults = warnings_.WarningCounter()
    found = list(corpus.split_sentences(text, faults))
    assert "".join("".join(found).split()) == "".join(text.split()) and max(map(len, found)) <= 30
    assert faults.counts == {corpus.LONG_SENTENCES: 2} and "a word a word a word a word a" in found
    assert "short." in found
    whole = "One. Two!\nThree\u3002Four."
    assert list(corpus.split_sentences(whole)) == ["One.", "Two!", "Three\u3002", "Four."]


def test_a_document_tokenized_in_parts_is_the_same(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(f"the {n} cat {m}" for m in range(9)) for n in range(50)))
    made = []
    for number, size in enumerate((2**20, 7)):
        monkeypatch.setattr(tokenization, "BATCH_CHARACTERS", size)
        cfg = resolution.resolve(
            fields.override(
                config.Config(),
                {
                    "data.path": str(tmp_path / "a.txt"),
                    "data.document_boundary": "blank_line",
                    "tokenizer.kind": "words",
                    "tokenizer.vocab_size": 40,
                    "pack.seq_len": 16,
                    "data.validation_fraction": 0.3,
                    "data.cache_dir": str(tmp_path / f"cache{number}"),
                },
            )
        )
        made.append(pack.load_dataset(cfg).manifest)
    assert made[0]["sha256"] == made[1]["sha256"] and made[0]["train"]["unknown"] > 0.01


@pytest.mark.parametrize("boundary", [r"(.*?,){11}P", r"((a|aa)+)+!"])
def test_an_expression_that_takes_for_ever_is_refused_with_the_line(tmp_path, boundary, monkeypatch):
    monkeypatch.setattr(files, "REGEX_TIMEOUT_SECONDS", 0.05)
    (tmp_path / "a.txt").write_text("a" * 60 + "\n" + "1,2,3,4,5,6,7,8,9,10,11,12,13,14" * 5 + "\n")
    with pytest.raises(
        errors.ConfigError, match=r"config\.data\.document_boundary = .* s a line; it takes more for '(a|1)"
    ):
        read(tmp_path / "a.txt", boundary)


@pytest.mark.parametrize("boundary", ["(", "[", "a{99999999999999999999}", "(?P<n", "*", "(" * 5000])
def test_no_expression_is_refused_before_a_file_is_opened(boundary):
    with pytest.raises(
        errors.ConfigError, match=r"^config\.data\.document_boundary = .*expected file, line, blank_line or a"
    ):
        corpus.check(config.Data(corpus="text", path="nowhere", document_boundary=boundary))


def test_the_parts_of_a_long_line_start_no_document(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LINE_PIECE_BYTES", 8)
    (tmp_path / "a.txt").write_text("a" * 40 + "\naaaaaaa\nb\n")
    assert read(tmp_path / "a.txt", "a+") == ["a" * 40, "aaaaaaa\nb"]
    assert read(tmp_path / "a.txt", "line") == ["a" * 40, "aaaaaaa", "b"]
    (tmp_path / "a.txt").write_text("a\n" + "\0" * 8 + "b\n \n c\n" + "\0" * 12)
    assert [read(tmp_path / "a.txt", name) for name in ("line", "blank_line")] == [["a", "b", "c"], ["a\nb", "c"]]


def test_a_text_that_is_not_there_is_said_when_a_sweep_checks_its_points(tmp_path):
    cfg = resolution.resolve(config.Config(), {"data.path": "nowhere/*.txt", "workdir": str(tmp_path / "run")})
    with pytest.raises(errors.ConfigError, match=r"^config.data.path = 'nowhere/\*.txt': no file matches"):
        loop.check(cfg)


def test_a_folder_without_text_is_told_from_a_name_that_is_wrong(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.pdf").write_bytes(b"%PDF")
    for name, said in (("texts", "the folder has no text"), ("text", "did you mean")):
        with pytest.raises(errors.ConfigError, match=f"no file matches .*{said}"):
            corpus.count_bytes(config.Data(corpus="text", path=f"{tmp_path}/{name}"))
