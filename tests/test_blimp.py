"""Minimal pairs are read in both forms they come in; what is wrong with them is said in one line; means weigh alike."""

import json
import re

import numpy as np
import pytest
from small import get_refusal

from mlm.base import errors
from mlm.evaluation import minimal_pairs
from mlm.inference.pseudo_likelihood import METRICS
from mlm.report import evaluation_scores


def lines(*pairs, **more):
    return "".join(json.dumps({"sentence_good": good, "sentence_bad": bad, **more}) + "\n" for good, bad in pairs)


@pytest.fixture
def folder(tmp_path):
    """As published: the phenomenon stands in each line."""
    (tmp_path / "wh_island.jsonl").write_text(
        lines(("Who hid?", "Hid who?"), ("Who won?", "Won who?"), linguistics_term="island_effects", pairID="0")
    )
    (tmp_path / "animate_subject_trans.jsonl").write_text(
        lines(("A man sang.", "A pan sang."), linguistics_term="s-selection")
    )
    return tmp_path


def test_a_part_of_a_suite_with_the_table_of_all_is_read_and_says_what_it_lacks(folder, caplog):
    (folder / "paradigms.tsv").write_text("UID\tlinguistics_term\nwh_island\tislands\nadjunct_island\tislands\n")
    assert [one.name for one in minimal_pairs.read_suite(folder).paradigms] == ["wh_island"]
    assert "lacks 1 of its 2 paradigms: adjunct_island" in caplog.text


def test_pairs_are_read_good_before_bad_with_the_papers_phenomena(folder):
    trans, island = minimal_pairs.read_suite(folder).paradigms
    assert trans == ("animate_subject_trans", "argument_structure", ["A man sang.", "A pan sang."])
    assert island == ("wh_island", "island_effects", ["Who hid?", "Hid who?", "Who won?", "Won who?"])
    assert minimal_pairs.read_suite(folder, ["wh_island"], max_pairs=1).paradigms == [
        island._replace(sentences=island.sentences[:2])
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"sentence_god": "a", "sentence_bad": "b"}\n',
            r"line 1: no key 'sentence_good', .*did you mean 'sentence_god'\?$",
        ),
        (lines(("a", "b"), linguistics_term="x") + '{"sentence_good": "a"}\n', r"line 2: no key 'sentence_bad'"),
        (lines(("a", " "), linguistics_term="x"), r"line 1: sentence_bad = ' ': expected a text that is not blank$"),
        (lines(("a", 3), linguistics_term="x"), r"line 1: sentence_bad = 3: expected a text that is not blank$"),
        ("\n\n", r"expected a file of minimal pairs; this one is empty$"),
        ("a\tb\n", r"wh_island.jsonl, line 1, column 1: .*; expected JSON$"),
    ],
)
def test_a_wrong_line_is_named(folder, text, message):
    (folder / "wh_island.jsonl").write_text(text)
    assert re.search(message, get_refusal(minimal_pairs.read_suite, folder))


def test_a_suite_is_called_by_its_folder_and_known_by_all_its_sentences(folder, tmp_path):
    found = minimal_pairs.read_suite(folder)
    assert found.name == folder.name and minimal_pairs.read_suite(folder, suite_name="mine").name == "mine"
    part = minimal_pairs.read_suite(folder, ["wh_island"], max_pairs=1)  # asks less of the same suite
    assert (part.name, part.sha256) == found[:2] and minimal_pairs.list_cases(part)[
        0
    ].name == f"{minimal_pairs.format_key(found)}/wh_island"
    odd = tmp_path / "two words\n|"
    odd.mkdir()
    for file in folder.glob("*.jsonl"):
        (odd / file.name).write_text(file.read_text())
    again = minimal_pairs.read_suite(odd)
    assert again.name == "two-words" and again.sha256 == found.sha256
    (odd / "wh_island.jsonl").write_text((odd / "wh_island.jsonl").read_text().replace("Won who?", "Won whom?"))
    other = minimal_pairs.read_suite(odd, suite_name=found.name)
    assert other.sha256 != found.sha256 and not {part.name for part in minimal_pairs.list_cases(other)} & {
        part.name for part in minimal_pairs.list_cases(found)
    }
    for name in ("a/b", "a b", "../x", "a\n"):
        with pytest.raises(errors.ConfigError, match=r"^--suite = .*: expected a name of letters, digits"):
            minimal_pairs.read_suite(folder, suite_name=name)


def test_the_whole_of_blimp_is_called_so_wherever_it_lies(tmp_path):
    names = [
        *minimal_pairs.SAMPLE_PARADIGMS,
        *(f"p{number}" for number in range(minimal_pairs.NUM_PARADIGMS - len(minimal_pairs.SAMPLE_PARADIGMS))),
    ]
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text(lines(("a", "b"), linguistics_term="x") * minimal_pairs.NUM_PAIRS)
    assert minimal_pairs.read_suite(tmp_path).name == minimal_pairs.read_suite(tmp_path, ["p1"], 5).name == "blimp"
    (tmp_path / "p1.jsonl").write_text(lines(("a", "b"), linguistics_term="x"))
    assert minimal_pairs.read_suite(tmp_path).name == tmp_path.name


def answers(truth, rng):
    """name -> what `pairs.ask` keeps, where a paradigm is (phenomenon, share, pairs)."""
    return {
        name: {"suite": "one", "sha256": name, "phenomenon": phenomenon, "pairs": count}
        | {f"{metric}_accuracy": (rng.random(count) < share).mean() for metric in METRICS}
        for name, (phenomenon, share, count) in truth.items()
    }


def test_a_phenomenon_is_the_mean_of_its_paradigms_with_an_interval_over_their_pairs():
    rng = np.random.default_rng(0)
    truth = {"one-12/a1": ("a", 0.9, 400), "one-12/a2": ("a", 0.6, 100), "one-12/b1": ("b", 0.97, 15)}
    many = [minimal_pairs.summarize(answers(truth, rng))["one-12"] for _ in range(1000)]
    for pick, share in ((lambda s: s["phenomena"]["a"], 0.75), (lambda s: s["overall"], 2.47 / 3)):
        drawn = [pick(summary) for summary in many]
        assert np.mean([one["pll_accuracy"] for one in drawn]) == pytest.approx(share, abs=0.003)
        covered = np.mean([one["pll_accuracy_low"] <= share <= one["pll_accuracy_high"] for one in drawn])
        assert 0.93 < covered < 0.98
    assert many[0]["phenomena"]["a"]["paradigms"] == 2 and many[0]["overall"]["pairs"] == 515
    right = minimal_pairs.summarize(answers({"one-12/a": ("a", 1.0, 15)}, rng))["one-12"]["overall"]
    assert right["pll_accuracy"] == right["pll_accuracy_high"] == 1 and right["pll_accuracy_low"] < 0.8


def test_chance_is_a_line_in_the_chart_over_training():
    summary = minimal_pairs.summarize(answers({"one-12/a": ("a", 0.9, 40)}, np.random.default_rng(0)))
    scores = list(minimal_pairs.list_scores({"summary": {"minimal_pairs": summary}}))
    run = {"config": {"workdir": "a"}, "milestones": {step: {"evaluation_scores": scores} for step in (1, 4)}}
    (chart,) = evaluation_scores.build_milestone_charts([run])
    assert [(line.name, line.y[0].mean) for line in chart.references] == [("chance", 50)]


def test_two_suites_are_never_averaged_together():
    rng = np.random.default_rng(0)
    truth = {"one-12/a": ("a", 1.0, 23), "two-34/a": ("a", 0.0, 2), "one-56/a": ("a", 0.0, 9)}
    found = minimal_pairs.summarize(answers(truth, rng))
    assert {name: (one["overall"]["pairs"], one["overall"]["pll_accuracy"]) for name, one in found.items()} == {
        "one-12": (23, 1.0),
        "two-34": (2, 0.0),
        "one-56": (9, 0.0),
    }
    assert len({one["sha256"] for one in found.values()}) == 3
