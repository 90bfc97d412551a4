"""Texts are the ids that transformers gives them: in folders of theirs, and in ours that they read.

Against tokenizer_lines.npz, made by transformers; where that is installed, it is what it still says, and where the
variable MLM_TEXTS names a folder of texts, one line in so many of those is asked of vocabularies learnt from them.
"""

import functools
import itertools
import json
import os
import random
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from fixtures import tokenizer_lines as theirs
from small import get_refusal, load_arrays

from mlm.base import config, errors, fields
from mlm.base.special import CLS, MASK, SEP, UNK
from mlm.data.rows import preprocessors
from mlm.data.tasks import examples
from mlm.data.tokenizers import hub, hub_export, hub_model, kinds
from mlm.objectives import extractive_qa

ASKED = 10_000
SIZE = {"bpe": 600, "wordpiece": 700, "unigram": 500, "words": 200, "characters": 0}
SAID = ["the [MASK] is", "[MASK]", " [MASK][MASK] .", "un[MASK]able. [MASK]"]
THAI, BREAD = "แมวกินขนมปังใกล้สะพานและหมาเห็นช้าง", "ขนมปัง"
PASSAGES = (
    THAI,
    "เธอกินﬁน้ำ\u0e33①ครับ😀แล้ว",
    "東京は日本の首都で、人口は①番です。２０２３年ｶﾞｷﾞ",
    "中国的首都是北京\uff0c人口超过两千万。",
    "the ﬁrst of ①②, ½ caf\u00e9 cafe\u0301 \uff21\uff22\uff23 x\u0301\u0302 \U0001d49cbc😀 ㍿ \ufdfa end",
    " \u3000 lead　東　京 \u200b x\u00ad y  ",
)
UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uff66-\uff9f]")
KINDS = pytest.mark.parametrize("kind", kinds.KINDS)


load_outputs = functools.partial(load_arrays, theirs.PATH)


@functools.cache
def train_tokenizer(kind):
    """Without the long lines: of a run of one letter, all ways to cut it that are equally likely would be right."""
    return kinds.train_tokenizer(
        config.Tokenizer(kind, SIZE[kind]), [line for line in theirs.LINES if len(line) < 90] * 2
    )


@functools.cache
def many() -> list[str]:
    """All lines of the texts that MLM_TEXTS names."""
    folder = os.environ.get("MLM_TEXTS", "")
    if not Path(folder).is_dir() or not folder:
        pytest.skip("the variable MLM_TEXTS names no folder of texts")
    pytest.importorskip("transformers")
    return [
        line for path in sorted(Path(folder).glob("*.txt")) for line in path.read_text(encoding="utf-8").splitlines()
    ]


def get_ids(name):
    """The ids that transformers gave each of LINES."""
    return np.split(load_outputs()[f"{name}:ids"], np.cumsum(load_outputs()[f"{name}:counts"])[:-1])


def read_there(folder, lines):
    """Our ids of lines with the tokenizer of a folder of theirs, in their numbers."""
    words = hub.read_tokenizer(folder)
    order_V = hub_model.get_original_ids(words)
    return [order_V[ids].tolist() for ids in words.encode_batch(lines)]


def is_composed(line) -> bool:
    """Whether NFKC makes one of several letters and marks, or a joiner stands there."""
    return "\u200d" in line or unicodedata.normalize("NFKC", line) != "".join(
        unicodedata.normalize("NFKC", letter) for letter in line
    )


def written(words, folder) -> Path:
    for name, text in hub_export.export_files(words, 512, 2).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", [*theirs.FOLDERS, *theirs.CHANGED])
def test_texts_are_their_ids(name, tmp_path):
    ids = read_there(theirs.write(load_outputs(), name, tmp_path), theirs.LINES)
    assert len(ids) == len(get_ids(name)) > 90
    for line, mine, wanted in zip(theirs.LINES, ids, get_ids(name), strict=True):
        assert mine == wanted.tolist(), line


@KINDS
def test_ours_exported_gives_our_ids(kind, tmp_path):
    words, folder = train_tokenizer(kind), written(train_tokenizer(kind), tmp_path)
    tool = tokenizers.Tokenizer.from_file(str(folder / hub.TOKENIZER_FILE))
    mine = words.encode_batch(theirs.LINES)
    differ = [line for line, ids in zip(theirs.LINES, mine, strict=True) if tool.encode(line).ids != [CLS, *ids, SEP]]
    assert not differ or (kind == "unigram" and all(map(is_composed, differ)))
    assert (
        [tool.encode(line).ids[1:-1] for line in SAID] == [words.encode_masked(line)[0] for line in SAID]
        if words.encode_masked
        else True
    )
    assert read_there(folder, theirs.LINES) == [tool.encode(line).ids[1:-1] for line in theirs.LINES]


def test_bytes_know_every_text_and_give_it_back():
    words = train_tokenizer("bpe")
    for line in [*theirs.LINES, "".join(map(chr, [*range(0xD800), *range(0xE000, 0x3000)]))]:
        ids = words.encode(line)
        assert min(ids, default=5) > MASK and words.decode(ids) == line.removeprefix(" ")
        assert words.encode(f" {line}") == ids or line.startswith(" ") or not line


def test_bytes_of_theirs_are_text_again(tmp_path):
    words = hub.read_tokenizer(theirs.write(load_outputs(), "bytes", tmp_path))
    for line in theirs.LINES:
        assert words.decode(words.encode(line)) == line.removeprefix(" ")


def test_a_hidden_word_of_bytes_takes_its_space_along():
    words = train_tokenizer("bpe")
    whole = words.encode("the quick fox.")
    assert words.encode_masked("the [MASK] fox.")[0] == [*words.encode("the"), MASK, *words.encode(" fox.")]
    assert words.encode_masked("[MASK] quick fox.")[0] == [MASK, *words.encode(" quick fox.")]
    assert words.encode_masked("the quick fox.")[0] == whole and MASK not in words.encode("the [MASK] fox.")


def test_words_of_bytes_begin_with_white_space():
    words = train_tokenizer("bpe")
    for text, starts in (("the fox's box.", 3), ("the\tfox", 2), ("the  fox", 3), ("Zo\u00eb \u4e2d\u6587", 2)):
        ids = words.encode(text)
        assert words.starts_word_V[ids].sum() == starts and words.starts_word_V[ids[0]]
    assert "\u2581the" in words.pieces and not words.starts_word_V[UNK] and words.starts_word_V[:5].sum() == 4
    assert len(set(words.pieces)) == words.vocab_size


def test_too_few_entries_for_the_bytes_are_refused():
    with pytest.raises(errors.ConfigError, match=r"vocab_size = 260: expected at least 261, to hold"):
        kinds.train_tokenizer(config.Tokenizer("bpe", 260), theirs.LINES)
    alone = kinds.train_tokenizer(config.Tokenizer("bpe", 261), theirs.LINES)
    assert alone.vocab_size == 261 and [alone.pieces[i] for i in alone.encode("x\u00e9")] == [
        "\u2581",
        "x",
        "\\xc3",
        "\\xa9",
    ]
    assert alone.encode_with_offsets("x\u00e9")[1] == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 2),
    ]  # the space before it is no letter of it


def test_entries_of_a_list_are_as_many_as_its_lines(tmp_path):
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a\u2028b", "c\x85d", "\x1ce", "the"]
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert read_there(tmp_path, ["The the"]) == [[8, 8]]
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": 3}')
    with pytest.raises(errors.ConfigError, match=r"expected a file of the tokenizers library"):
        hub.read_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    pytest.importorskip("transformers")
    assert theirs.encode_lines(tmp_path, ["The the"]) == [[8, 8]]


REFUSED = {  # changes of a folder, its settings first, and what is said
    "another program": (
        "uncased",
        {"tokenizer_class": "BertJapaneseTokenizer"},
        "vocab.txt",
        "tokenizer_class = 'BertJ",
    ),
    "a word for a switch": ("uncased", {"do_lower_case": "no"}, "", "do_lower_case = 'no': expected true or false"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_are_not_known_are_refused_in_one_line(case, tmp_path):
    base, settings, drop, line = REFUSED[case]
    folder = theirs.write(load_outputs(), base, tmp_path)
    theirs.change(
        folder, {name: value for name, value in settings.items() if value != ["brown"]}, "tokenizer.json" * bool(drop)
    )
    if case == "no number":
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = get_refusal(hub.read_tokenizer, folder)
    assert said.startswith(f"{folder}/tokenizer_config.json: ") and line in said


def test_the_mask_of_merges_takes_its_space_as_in_the_released_file(tmp_path):
    folder = theirs.write(load_outputs(), "a word added to merges", tmp_path)
    words = hub.read_tokenizer(folder)
    assert words.encode_masked(" the [MASK] fox")[0] == [*words.encode(" the"), MASK, *words.encode(" fox")]
    mask = {"content": "<mask>", "lstrip": False, "rstrip": True}
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": mask}))
    ids, _ = hub.read_tokenizer(folder).encode_masked(" the [MASK] fox")
    assert ids[-len(words.encode("fox")) :] == words.encode("fox")


def replace(text, content):
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


@pytest.mark.parametrize(("step", "key"), [("normalizer", "normalizers"), ("decoder", "decoders")])
def test_steps_that_multiply_the_text_are_refused(step, key, tmp_path):
    folder = theirs.write(load_outputs(), "bytes", tmp_path)
    made = json.loads((folder / hub.TOKENIZER_FILE).read_text())
    for steps, line in (
        ([replace("a", "a" * 10)] * 12, "letters of"),
        ([replace("", "ab" * 200)], "letters of"),
        ([replace("a", "bb")] * 3, ""),
    ):
        (folder / hub.TOKENIZER_FILE).write_text(json.dumps(made | {step: {"type": "Sequence", key: steps}}))
        if line:
            assert line in get_refusal(hub.read_tokenizer, folder)
    hub.read_tokenizer(folder)


def test_a_pattern_that_goes_back_without_end_is_a_line(tmp_path):
    folder = theirs.write(load_outputs(), "bytes", tmp_path)
    made = json.loads((folder / hub.TOKENIZER_FILE).read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (folder / hub.TOKENIZER_FILE).write_text(json.dumps(made | {"pre_tokenizer": split}))
    (folder / "tokenizer_config.json").unlink()
    for name in ("encode", "encode_with_offsets", "encode_masked"):
        said = get_refusal(lambda: getattr(hub.read_tokenizer(folder), name)("a" * 40 + "b"))  # noqa: B023
        assert "expected steps that end" in said


@pytest.mark.parametrize("name", [*theirs.FOLDERS, *theirs.CHANGED])
def test_the_file_is_what_they_say(name, tmp_path):
    pytest.importorskip("transformers")
    assert theirs.encode_lines(theirs.write(load_outputs(), name, tmp_path), theirs.LINES) == [
        ids.tolist() for ids in get_ids(name)
    ]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", theirs.FOLDERS)
def test_ten_thousand_lines_are_their_ids(name, tmp_path):
    theirs.write_tokenizer(name, many(), 8000, str(tmp_path))
    lines = random.Random(0).sample(many(), min(ASKED, len(many())))
    assert read_there(tmp_path, lines) == theirs.encode_lines(tmp_path, lines)


@pytest.mark.exhaustive
@pytest.mark.slow
@KINDS
def test_ten_thousand_lines_are_our_ids_there(kind, tmp_path):
    """But for one in 1,000 of Unigram's, where a letter has several marks."""
    words = kinds.train_tokenizer(config.Tokenizer(kind, 8000), many())
    lines = random.Random(0).sample(many(), min(ASKED, len(many())))
    found = theirs.encode_lines(written(words, tmp_path), lines)
    differ = sum(list(mine) != ids for mine, ids in zip(words.encode_batch(lines), found, strict=True))
    assert differ <= (len(lines) / 1000 if kind == "unigram" else 0)


def find_boundaries(text, spans):
    """The starts and the ends of pieces where no piece goes on and, in scripts with spaces, no word does."""

    def is_inside(place):
        pair = text[max(place - 1, 0) : place + 1]
        is_word = len(pair) == 2 and all(unicodedata.category(c)[0] in "LMN" and not UNSPACED.match(c) for c in pair)
        return is_word or any(start < place < end for start, end in spans)

    places = zip(*(span for span in spans if span[0] < span[1]), strict=True)
    return [[place for place in sorted({*side}) if not is_inside(place)] for side in places]


@pytest.mark.parametrize("name", [*kinds.KINDS, "unigram of passages", *theirs.FOLDERS, *theirs.CHANGED])
def test_an_answer_in_any_script_comes_back_from_its_pieces(name, tmp_path):
    if name == "unigram of passages":
        tokenizer = kinds.train_tokenizer(config.Tokenizer("unigram", 115), PASSAGES * 3)
    elif name in kinds.KINDS:
        tokenizer = train_tokenizer(name)
    else:
        tokenizer = hub.read_tokenizer(theirs.write(load_outputs(), name, tmp_path))
    cfg = fields.override(config.Config(), {"pack.seq_len": 256, "data.labelled.doc_stride": 128})
    for passage in PASSAGES:
        ids, spans = tokenizer.encode_with_offsets(passage)
        words = [match.span() for match in re.finditer(r"\S+", passage)]
        assert ids == tokenizer.encode(passage)
        assert all(a <= c and b <= d for (a, b), (c, d) in itertools.pairwise(spans))
        assert all(a == b or any(first <= a <= b <= last for first, last in words) for a, b in spans)
        pairs = itertools.product(*find_boundaries(passage, spans))
        answers = [(a, b) for a, b in pairs if 0 < b - a <= len(BREAD)]
        questions = [examples.Example("q", ("?", passage), label=((passage[a:b], a),)) for a, b in answers]
        for (row,), (a, b) in zip(preprocessors.encode_questions(questions, tokenizer, cfg, ()), answers, strict=True):
            start_L, end_L = (np.arange(cfg.pack.seq_len) == row.labels[column] for column in ("start", "end"))
            window = (start_L, end_L, row.labels["passage"], np.array(spans))
            assert extractive_qa.find_best_answer([window], passage).text == passage[a:b]
        if passage == THAI and name in ("unigram", "characters", "unigram of passages", "bpe"):
            assert BREAD in {passage[a:b] for a, b in answers}
