"""The headline of a sweep: the best model first, told from another only where a corrected test tells them apart."""

import copy
import math
import random
import re
import sys
from pathlib import Path

import pages
import pytest

from experiments import architectures
from mlm.base import estimates
from mlm.report import compare, headline, row_charts, series, summary, table


def make(results):
    rows, columns = architectures.table(results)
    groups = series.group_runs(results)
    return headline.build_headline(results, rows, columns, groups, compare.rank_families(groups))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return pages.sweep(tmp_path_factory.mktemp("sweep"))


def test_models_stand_by_score_and_references_below(results):
    made = make(results[::-1])
    models = [row for row in made.table.rows if "seeds" in row]
    values = [row["excess_loss"].mean for row in models]
    assert values == sorted(values) and [row["model"] for row in models] == list(pages.MEMBERS)
    assert made.table.rows[: len(models)] == models
    assert made.row_kinds[len(models)] == "rule"
    assert re.match(f"{pages.MEMBERS[0]} is [a-z]+: {values[0]:.3f} ", made.sentence)


def test_few_columns_tell_each_model_apart(results):
    small = [{"model.size": "micro", "workdir": run["config"]["workdir"].replace("tiny", "micro")} for run in results]
    others = [run | {"config": run["config"] | own} for run, own in zip(results, small, strict=True)]
    made = make([*results, *others])
    models = [row for row in made.table.rows if "seeds" in row]
    names = headline.select_name_columns(models, made.table.columns)
    assert len({tuple(row[column.name] for column in names) for row in models}) == len(models)
    assert len(made.table.columns) <= 8


def test_where_there_is_no_room_the_score_the_names_and_the_test_stay(results, monkeypatch):
    whole, left = [column.name for column in make(results).table.columns], []
    for count in range(1, len(whole) + 2):
        monkeypatch.setattr(headline, "MAX_COLUMNS", count)
        names = [column.name for column in make(results).table.columns]
        assert len(names) == min(count, len(whole)) and {*left} <= {*names}
        assert names == [name for name in whole if name in names]
        left += [name for name in names if name not in left]
    assert left == ["excess_loss", "model", "verdict", "seeds", "accuracy", "near", "recall", "parameters"]


def test_markdown_has_the_best_in_bold_and_an_empty_row_above_references(results):
    made = make(results).table
    best = made.rows[0] | {"verdict": "best"}
    lines = table.to_markdown([best, *made.rows[1:]], made.columns).splitlines()[2 : len(made.rows) + 3]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(re.fullmatch(r"\*\*.+\*\*", cell) for cell in cells[0]) and "**" not in "".join(lines[1:])
    empty = [i for i, row in enumerate(cells) if not any(row)]
    assert empty == [sum("seeds" in row for row in made.rows)]


def test_a_size_is_named_with_its_parameters(results):
    other = {"model.size": "micro", "workdir": results[0]["config"]["workdir"].replace("tiny", "micro")}
    runs = [*results[:-1], results[-1] | {"parameters": 1200}]
    assert make(runs).sentence.endswith(" Sizes: tiny (1K to 1.2K parameters).")
    runs += [results[0] | {"config": results[0]["config"] | other, "parameters": 250}]
    assert make(runs).sentence.endswith(" Sizes: tiny (1K to 1.2K parameters), micro (250 parameters).")


def test_a_verdict_is_that_of_the_claims(results):
    """For three seeds whose differences are of any size."""
    rng, verdicts = random.Random(0), set()
    for spread in (0.001, 0.01, 0.1, 1.0):
        noisy = [
            run
            | {
                "config": run["config"]
                | {"seed": seed, "workdir": f"{run['config']['workdir'][:-12]}seed{seed}-0123ab"},
                "held_out": run["held_out"] | {"mlm_nats": run["held_out"]["mlm_nats"] * (1 + spread * rng.random())},
            }
            for run in results[::2]
            for seed in range(3)
        ]
        for run in noisy:
            loss = run["held_out"]["mlm_nats"].sum() / run["held_out"]["mlm_weight"].sum()
            run["evaluation"] = run["evaluation"] | {"loss": loss, "excess_loss": loss - run["evaluation"]["floor"]}
        groups = series.group_runs(noisy)
        claims, _ = compare.build_claims_table(groups, compare.rank_families(groups))
        p = {row["worse"].removesuffix("-tiny"): row["corrected_p"] for row in claims}
        for row in make(noisy).table.rows:
            if row.get("verdict", "best") != "best":
                verdict, _, shown = row["verdict"].partition(", p ")
                assert verdict == ("worse" if p[row["model"]] < 0.05 else "undecided")
                assert float(shown or 1) == pytest.approx(p[row["model"]], rel=0.06)
                verdicts.add(verdict)
    assert verdicts == {"worse", "undecided"}


def test_models_of_one_mean_keep_their_own_verdicts(results):
    """Of two that are as far from the best, one in each of its seeds: in any order of the table."""
    noisy = []
    for place, losses in enumerate(((3.0, 3.0, 3.01), (3.2, 3.2, 3.2), (2.6, 3.2, 3.8))):
        for seed, loss in enumerate(losses):
            run, workdir = results[2 * place], results[2 * place]["config"]["workdir"]
            own = {"seed": seed, "workdir": f"{workdir[:-12]}seed{seed}-0123ab"}
            values = run["evaluation"] | {"loss": loss, "excess_loss": loss - run["evaluation"]["floor"]}
            held_out = {"mlm_nats": loss * run["held_out"]["mlm_weight"], "mlm_weight": run["held_out"]["mlm_weight"]}
            noisy.append(run | {"config": run["config"] | own, "evaluation": values, "held_out": held_out})
    rows, columns = architectures.table(noisy)
    groups = series.group_runs(noisy)
    for ordered in (rows, rows[::-1]):
        made = headline.build_headline(noisy, ordered, columns, groups, compare.rank_families(groups))
        verdicts = {row["model"]: row["verdict"].partition(",")[0] for row in made.table.rows if "seeds" in row}
        assert verdicts == dict(zip(pages.MEMBERS, ("best", "worse", "undecided"), strict=True))


@pytest.mark.parametrize("place", range(len(pages.MEMBERS)))
def test_a_run_whose_stored_loss_is_nan_is_never_the_best(results, place):
    """Nor does it change the order of the others, whichever it is and in whatever order the runs come."""
    broken = [
        run | {"evaluation": run["evaluation"] | {"loss": math.nan, "excess_loss": math.nan}}
        for run in results[2 * place :][:2]
    ]
    runs = [*results[: 2 * place], *broken, *results[2 * place + 2 :]]
    names = [row["model"] for row in make(runs[::-1]).table.rows if "seeds" in row]
    assert names == [name for i, name in enumerate(pages.MEMBERS) if i != place] + [pages.MEMBERS[place]]
    assert make(runs).sentence.startswith(f"{names[0]} is ") and make(runs[::-1]).row_kinds == {0: "best", 3: "rule"}
    assert make(runs).table.rows[3:] == make(results).table.rows[3:]  # references
    assert all(map(summary.describe_unigram, broken))


@pytest.mark.parametrize("rate", ["0.15", "0.5", ""])
def test_stored_nan_scores_have_no_cell_and_change_no_other_s_color(results, rate):
    """Of one model by the rate of evaluation, and of all models: then no chart has data, and no row is the best."""
    runs = copy.deepcopy(results)
    for run in runs[:2] if rate else runs:
        by_rate = run["evaluations"]["mask_rates"]
        for values in [by_rate[rate]] if rate else [run["evaluation"], *by_rate.values()]:
            values |= {"loss": math.nan, "excess_loss": math.nan}
    found, whole = (
        [chart.spec["data"]["values"] for chart in row_charts.build_heat_maps(each)] for each in (runs, results)
    )
    assert bool(found) == bool(rate)
    if rate:
        percent = f"{100 * float(rate):g}"
        left = [cell for cell in whole[0] if (cell["row"], cell["rate"]) != (0, percent)]
        nearest = min(cell["distance"] for cell in left if cell["rate"] == percent)
        expected = [cell | {"distance": cell["distance"] - nearest * (cell["rate"] == percent)} for cell in left]
        assert found[0] == [cell | {"distance": pytest.approx(cell["distance"])} for cell in expected]
        return
    rows, columns = architectures.table(runs)
    compared = [row | {"difference": row["excess_loss"], "p": 1.0} for row in rows if "seeds" in row]
    columns = [*columns, table.Column("difference", "difference", "+.3f"), table.Column("p", "p", ".2g")]
    made = headline.build_headline(runs, compared, columns, series.group_runs(runs), [])
    assert made.sentence.startswith("None of 3 differences (difference) is more than chance (p below 0.05). ")


def test_an_evaluation_of_fewer_than_half_of_the_models_has_no_column(results):
    score = estimates.EvaluationScore(estimates.EvaluationMetric("task_topic", "accuracy", "0" * 64), 0.9)
    for cells, is_shown in ((("lstm",), False), (("lstm", "gru"), True)):
        evaluated = [
            run | ({"evaluation_scores": [score]} if run["config"]["model.cell"] in cells else {}) for run in results
        ]
        names = [column.name for column in make(evaluated).table.columns]
        assert ("task_topic" in names) == is_shown and "near" in names


def test_latex_marks_the_best_and_those_not_told_from_it(results):
    close = [
        run | {"held_out": run["held_out"] | {"mlm_nats": other["held_out"]["mlm_nats"] * (1.01, 0.998)[seed]}}
        for seed, (other, run) in enumerate(zip(results[:2], results[2:4], strict=True))
    ]
    for runs, expected in ((results, "worse"), ([*results[:2], *close, *results[4:]], "undecided")):
        made = make(runs)
        verdicts = [row.get("verdict", "").partition(",")[0] for row in made.table.rows]
        assert verdicts[:2] == ["best", expected]
        text = made.to_latex()
        head, models, references = re.split(r"\\midrule\n", text)
        assert "\\toprule" in head and references.partition("\\bottomrule")[0].count("\n") == verdicts.count("")
        for verdict, line in zip(verdicts, models.splitlines(), strict=False):
            assert ("\\textbf{" in line, "$^\\dagger$" in line) == (verdict == "best", verdict == "undecided"), line
        assert re.findall("^%.*", text, re.MULTILINE) == [text.splitlines()[-1]]
    one_seed = make([run for run in results if run["config"]["seed"] == 0]).to_latex()
    assert "textbf" not in one_seed and "dagger" not in one_seed


def test_one_seed_ranks_nothing(results):
    made = make(
        [
            run
            | {"evaluation": run["evaluation"] | {"rows": 200}, "config": run["config"] | {"data.corpus": "language"}}
            for run in results
            if run["config"]["seed"] == 0
        ]
    )
    end = "1 seed, so another seed may change the order. Sizes: tiny (1K parameters). Measured on 200 held-out examples of the built-in synthetic language"
    assert made.sentence.endswith(f"{end}, whose best possible loss, the floor, is known.")
    assert headline.VERDICT not in made.table.columns


def test_an_experiment_s_own_comparisons_come_first(results):
    rows, columns = architectures.table(results)
    differences = {"lstm": (-0.2, 0.01), "gru": (0.4, 0.001), "window": (3.0, 0.5)}
    for row in rows:
        if difference := differences.get(row["model"]):
            row["difference"], row["p"] = estimates.Estimate(difference[0], None, None), difference[1]
    columns = [*columns, table.Column("difference", "loss minus AdamW's (nats)", "+.1f"), table.Column("p", "p", ".2g")]
    made = headline.build_headline(results, rows, columns, series.group_runs(results), [])
    start = "2 of 3 differences (loss minus AdamW's, nats) are more than chance (p below 0.05): "
    start += "gru +0.4, lstm -0.2. "
    assert made.sentence.startswith(f"{start}Lowest in the mean: {pages.MEMBERS[0]}, ")
    models = [row["model"] for row in rows if "seeds" in row]
    assert [row["model"] for row in made.table.rows][: len(models)] == models
    assert {"difference", "p"} <= {column.name for column in made.table.columns}
    bold = [row["model"] for i, row in enumerate(made.table.rows) if made.row_kinds.get(i) == "best"]
    assert sorted(bold) == ["gru", "lstm"] and made.tested == ("difference", "p")
    for row, difference in zip(filter(lambda row: "p" in row, rows), (0.1, 0.2, 0.3), strict=True):
        row["difference"], row["p"] = estimates.Estimate(difference, None, None), 0.5
    made = headline.build_headline(results, rows, columns, series.group_runs(results), [])
    assert made.sentence.startswith(
        "None of 3 differences (loss minus AdamW's, nats) is more than chance (p below 0.05), though all are positive. "
    )


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"objective": "causal"}, ("A (mlm)", "B (causal)")),
        ({"data.corpus": "text", "data.path": "a/b/c.txt"}, ("A (the built-in synthetic language)", "B (b/c.txt)")),
    ],
)
def test_models_on_different_examples_are_not_ranked_together(results, fields, labels):
    results = [run | {"config": run["config"] | {"data.corpus": "language"}} for run in results]
    others = [
        run
        | {
            "config": run["config"] | fields | {"workdir": f"other-{Path(run['config']['workdir']).name}"},
            "held_out": run["held_out"] | {"mlm_weight": 1 + run["held_out"]["mlm_weight"]},
        }
        for run in results
    ]
    sentence = make([*results, *others]).sentence
    for examples in labels:
        assert f"On examples {examples}, {pages.MEMBERS[0]}" in sentence
    assert "Scores on different examples do not compare." in sentence


def test_a_model_is_named_by_what_its_ranking_does_not_share_and_never_by_its_speed():
    names = [
        table.Column("model", "model"),
        table.Column("text", "text"),
        table.Column(headline.SPEED, "tokens/s", ",.0f"),
    ]
    rows = [
        {"model": model, "text": text, headline.SPEED: speed, "loss": estimates.Estimate(loss, None, None), "seeds": 1}
        for speed, (model, text, loss) in enumerate((m, t, n) for t in "ab" for n, m in enumerate(("gru", "lstm")))
    ]
    chosen = headline.select_name_columns(rows, [*names, table.Column("seeds", "seeds")])
    assert [column.name for column in chosen] == ["model", "text"]
    ranking, loss_score = headline.Ranking(rows[:2], [None, None]), estimates.Score("loss", "loss", ("nats", "weight"))
    assert headline.describe_ranking(ranking, chosen, loss_score, {}).startswith("gru is ahead")


def test_references_stand_from_the_best_on(results):
    references = [row["model"] for row in make(results).table.rows if "seeds" not in row]
    assert references == ["Bayes optimum", "window floor", "unigram"]


def test_a_table_of_an_experiment_s_own_is_shown_as_it_is(results):
    rows = [{"width": 1, "zeros": 0}]
    columns = [table.Column("width", "width", "d"), table.Column("zeros", "zeros", "d")]
    made = headline.build_headline(results, rows, columns, series.group_runs(results), [])
    assert (made.table.rows, made.table.columns, made.row_kinds) == (rows, columns, {})


def test_columns_of_measured_numbers_make_room_on_a_terminal_from_the_last_on(results):
    made = make(results)
    measured = [
        column for column in made.table.columns if column.name in ("excess_loss", "accuracy", "near", "far", "recall")
    ]
    others = [column for column in made.table.columns if column not in measured]
    for width in range(20, 200):
        fitted = table.fit_columns(made.table.rows, made.table.columns, width)
        kept, left = ([column for column in fitted if (column in measured) == is_one] for is_one in (True, False))
        assert kept == measured[: len(kept)] and kept
        assert left == others[: len(left)] and left and (left == others or len(kept) == 1)
    assert fitted == list(made.table.columns) and len(measured) > 1


def test_no_cell_is_cut_on_a_terminal(monkeypatch, capsys):
    long = "loss with the posterior as target minus with tokens (nats)"
    names = {"model": "", "target": "", "loss above the floor (nats)": ".3f", long: "+.3f", "p (Holm)": ".2g"}
    columns = [table.Column(title, title, form) for title, form in (names | {"parameters": "", "seeds": ",d"}).items()]
    value = estimates.Estimate(-0.127, -0.337, 0.084)
    cells = ["Bayes optimum", "posterior", value, value, 0.2, "133K", 3]
    row = {column.name: cell for column, cell in zip(columns, cells, strict=True)}
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LINES", "50")  # without it rich takes a dumb terminal to be 80 wide
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width in range(77, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        table.print_table([row], table.fit_columns([row], columns, width))
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert not any("…" in line for line in lines), width
        assert max(map(len, lines)) <= width and any(line.endswith(" seeds") for line in lines), width
        assert any(re.search("posterior .*133K +3$", line) for line in lines), width


def test_a_table_without_intervals_fits_a_terminal(monkeypatch, capsys):
    columns = [table.Column("row", "row"), *(table.Column(f"{n}", f"expected best of {n}", ".3f") for n in range(9))]
    columns += [table.Column(name, name) for name in ("optim.learning_rate", "optim.weight_decay", "model.init_std")]
    row = {column.name: 0.5 if column.format else "0.001558 (log-uniform, 0.0005 to 0.008)" for column in columns}
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LINES", "50")  # without it rich takes a dumb terminal to be 80 wide
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width in range(40, 200, 5):
        monkeypatch.setenv("COLUMNS", str(width))
        table.print_table([row], columns)
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= width and "…" not in text and "0.500" in text
        assert ("No room here for" in text) == (width < 175), width


def test_commands_print_tables_for_the_terminal_and_write_markdown_into_files_alone():
    root = Path(__file__).parents[1]
    paths = [*(root / "mlm" / "cli").glob("*.py"), *(root / "experiments").rglob("*.py")]
    assert len(paths) > 20 and [path.name for path in paths if "to_markdown(" in path.read_text()] == []


def test_models_that_learnt_nothing_are_counted(results):
    bad = [
        run | {"evaluation": run["evaluation"] | {"loss": 5.0, "excess_loss": 5.0 - run["evaluation"]["floor"]}}
        if run["config"]["model.cell"] == "gru"
        else run
        for run in results
    ]
    assert "1 of 3 models learnt nothing beyond token frequencies." not in make(results).sentence
    assert "1 of 3 models learnt nothing beyond token frequencies." in make(bad).sentence


def test_a_quantity_is_near_its_number_and_short():
    rng = random.Random(0)
    for count in [0, 999.6, 1e21, *(10 ** rng.uniform(0, 22) for _ in range(500))]:
        text = table.format_quantity(count)
        digits, prefix = re.fullmatch(r"([\d.]+)([KMGTPEZ]?)", text).groups()
        assert math.isclose(float(digits) * 1000 ** " KMGTPEZ".index(prefix or " "), count, rel_tol=0.005)
        assert len(text) <= 5


def test_a_table_in_an_order_of_its_own_names_the_best_model(results):
    (rows, columns), groups = architectures.table(results), series.group_runs(results)
    made = headline.build_headline(results, [*rows[2::-1], *rows[3:]], columns, groups, compare.rank_families(groups))
    assert made.sentence.startswith(f"{pages.MEMBERS[0]} is ") and made.table.rows[0]["model"] == pages.MEMBERS[0]


def test_the_caption_escapes_all_signs_of_tex(results):
    text = make(results)._replace(sentence="a\\b & 5% $x_1^2$ #{1} ~").to_latex().splitlines()[-1]
    expected = r"a\textbackslash{}b \& 5\% \$x\_1\textasciicircum{}2\$ \#\{1\} \textasciitilde{}"
    assert text.startswith(rf"% \caption{{{expected}")


def test_shares_are_in_per_cent_and_references_have_names(results):
    made = make(results)
    columns = {column.name: column for column in made.table.columns}
    for name in ("accuracy", "near"):
        cell = table.format_cell(made.table.rows[0][name], columns[name].format)
        assert columns[name].title.endswith("(%)") and cell.startswith(f"{100 * made.table.rows[0][name].mean:.1f} ")
    constant = [run | {"config": run["config"] | {"model.cell": "", "model.family": "rnn"}} for run in results]
    assert "unigram" in [row.get(made.table.columns[0].name) for row in make(constant).table.rows]
