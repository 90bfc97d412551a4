"""Minimal pairs are read in both forms they come in; what is wrong with them is said in one line; means weigh alike."""
import json

import numpy as np
import pytest

from mlm.base import errors
from mlm.data.tasks import blimp
from mlm.judge import pairs


def lines(*pairs, **more):
    return "".join(json.dumps({"sentence_good": good, "sentence_bad": bad, **more}) + "\n" for good, bad in pairs)


@pytest.fixture
def folder(tmp_path):
    """As published: the phenomenon stands in each line."""
    (tmp_path / "wh_island.jsonl").write_text(lines(("Who hid?", "Hid who?"), ("Who won?", "Won who?"),
                                                    linguistics_term="island_effects", pairID="0"))
    (tmp_path / "animate_subject_trans.jsonl").write_text(lines(("A man sang.", "A pan sang."),
                                                                linguistics_term="s-selection"))
    return tmp_path


def test_pairs_are_read_good_before_bad_with_the_papers_phenomena(folder):
    trans, island = blimp.read(folder)
    assert trans == ("animate_subject_trans", "argument_structure", ["A man sang.", "A pan sang."])
    assert island == ("wh_island", "island_effects", ["Who hid?", "Hid who?", "Who won?", "Won who?"])
    assert blimp.read(folder, ["wh_island"], max_pairs=1) == [island._replace(sentences=island.sentences[:2])]


def test_a_table_may_name_the_paradigms_and_their_phenomena(folder):
    (folder / "wh_island.jsonl").write_text(lines(("Who hid?", "Hid who?")))
    (folder / "scores_of_models.jsonl").write_text('{"model": "lstm"}\n')  # in the folder, but in no row of the table
    (folder / "paradigms.tsv").write_text("UID\tfield\tlinguistics_term\nwh_island\tsyntax\tisland_effects\n")
    assert blimp.read(folder) == [("wh_island", "island_effects", ["Who hid?", "Hid who?"])]


@pytest.mark.parametrize(("text", "message"), [
    (lines(("a", "b"), term="x"), r"wh_island.jsonl, line 1: no key 'linguistics_term' among "),
    ('{"sentence_god": "a", "sentence_bad": "b"}\n', r"line 1: no key 'sentence_good', but 'sentence_god'$"),
    (lines(("a", "b"), linguistics_term="x") + '{"sentence_good": "a"}\n', r"line 2: no key 'sentence_bad'"),
    (lines(("a", " "), linguistics_term="x"), r"line 1: sentence_bad = ' ': expected a text$"),
    (lines(("a", 3), linguistics_term="x"), r"line 1: sentence_bad = 3: expected a text$"),
    ("a\tb\n", r"wh_island.jsonl, line 1 = 'a\\tb': expected a JSON object$"),
    ("", r"expected a file of minimal pairs; this one is empty$"),
])
def test_a_wrong_line_is_named(folder, text, message):
    (folder / "wh_island.jsonl").write_text(text)
    with pytest.raises(errors.ConfigError, match=message) as error:
        blimp.read(folder)
    assert "\n" not in str(error.value)


def test_a_wrong_folder_or_name_is_told(folder, tmp_path):
    with pytest.raises(errors.ConfigError, match=r"^blimp = '.*/absent': expected a folder of BLiMP's .jsonl files$"):
        blimp.read(folder / "absent")
    (folder / "empty").mkdir()
    with pytest.raises(errors.ConfigError, match=r"this one has none$"):
        blimp.read(folder / "empty")
    with pytest.raises(errors.ConfigError, match="did you mean 'wh_island'"):
        blimp.read(folder, ["wh_iland"])
    (folder / "paradigms.tsv").write_text("UID\tterm\n")
    with pytest.raises(errors.ConfigError, match=r"paradigms.tsv, line 1 = 'UID\\tterm': expected a column ling"):
        blimp.read(folder)
    (folder / "paradigms.tsv").write_text("UID\tlinguistics_term\nabsent\tislands\n")
    with pytest.raises(errors.ConfigError, match=r"^blimp: cannot read .*absent.jsonl"):
        blimp.read(folder)


def test_a_phenomenon_is_the_mean_of_its_paradigms_with_the_error_of_their_pairs():
    rng = np.random.default_rng(0)
    truth = {"a1": ("a", 0.9, 400), "a2": ("a", 0.6, 100), "b1": ("b", 0.2, 50)}

    def once():
        found = {}
        for name, (phenomenon, share, count) in truth.items():
            right = rng.random(count) < share
            found[name] = {"phenomenon": phenomenon, "pairs": count, "pll_accuracy": right.mean(),
                           "pll_accuracy_se": right.std(ddof=1) / count**0.5}
        return pairs.summary(found)

    many = [once() for _ in range(2000)]
    for pick, share in ((lambda s: s["phenomena"]["a"], 0.75), (lambda s: s["overall"], 1.7 / 3)):
        drawn = [pick(summary)["pll_accuracy"] for summary in many]
        assert np.mean(drawn) == pytest.approx(share, abs=0.003)
        assert np.mean([pick(s)["pll_accuracy_se"] for s in many]) == pytest.approx(np.std(drawn), rel=0.06)
    assert many[0]["phenomena"]["a"]["paradigms"] == 2 and many[0]["overall"]["pairs"] == 550
