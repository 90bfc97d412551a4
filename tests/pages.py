"""A small sweep as reports read it, and a browser for its page."""

import contextlib
import itertools
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from experiments import architectures
from mlm.base import config, fields
from mlm.objectives import mlm
from mlm.report import charts, table
from mlm.report.pages import sweep as sweep_page
from mlm.training.validation import references

MEMBERS = ("window", "gru", "lstm")
SCORES = (
    *mlm.SCORES,
    *references.make_floor_references(mlm.SCORES[0], dict.fromkeys(("floor", "window_floor"))).scores,
)
LOSS = charts.axis_title(next(score for score in SCORES if score.name == "loss"))


def make_evaluation(loss, rate=0.15):
    floor = 2 + rate
    return {
        "rate": rate,
        "loss": loss,
        "loss_se": 0.03,
        "accuracy": 0.3,
        "accuracy_se": 0.01,
        "perplexity": np.exp(loss),
        "perplexity_se": 0.1,
        "unigram_loss": 4.8,
        "unigram_accuracy": 0.1,
        "window_floor": 2.5,
        "window_floor_accuracy": 0.4,
        "floor": floor,
        "floor_se": 0.02,
        "floor_accuracy": 0.5,
        "excess_loss": loss - floor,
        "excess_loss_se": 0.01,
    }


def classes(share, *bounds):
    return [
        {
            "low": low,
            "high": high,
            "items": 90,
            "accuracy": share - 0.05 * i,
            "accuracy_se": 0.02,
            "optimum": 0.99 - 0.01 * i,
        }
        for i, (low, high) in enumerate(bounds)
    ]


def start(**changes) -> dict:
    """What a run says of one start."""
    return {
        "step": 0,
        "time": "2026-11-22T03:06:45Z",
        "ended": "2026-11-22T04:10:00Z",
        "command": ["run"],
        "commit": "0123456789abcdef",
        "changed_files": "",
        "python": "3.11.7",
        "versions": {"jax": "0.10.2", "flax": "0.12.8"},
        "device": "cpu",
        "processor": "AMD EPYC",
        "devices": 1,
        "processes": 1,
    } | changes


def sweep(root: Path) -> list[dict]:
    """Three groups of two seeds, which lie in the order of their losses, as if they were in a folder."""
    results, rng = [], np.random.default_rng(0)
    predictions_N, row_N = rng.integers(5, 20, 60), rng.normal(3, 0.5, 60)
    for (place, member), seed in itertools.product(enumerate(MEMBERS), (0, 1)):
        nats_N = (row_N + 0.3 * place + 0.02 * seed + rng.normal(0, 0.1, 60)) * predictions_N
        loss = nats_N.sum() / predictions_N.sum()
        own = {
            "model.family": architectures.FAMILIES[member],
            "model.cell": member,
            "model.size": "tiny",
            "seed": seed,
            "workdir": str(root / f"{member}-tiny-seed{seed}-0123ab"),
            "optim.learning_rate": 2e-3 if member == "lstm" else 1e-3,
        }
        results.append(
            {
                "config": fields.flatten(config.Config()) | own,
                "parameters": 1000,
                "non_embedding": 800,
                "flops": 1e9,
                "steps": 4,
                "tokens": 4096.0 + seed,
                "tokens_per_second": 500.0,
                "predictions": 600.0,
                "timed_seconds": 8.0 + seed,
                "evaluation": make_evaluation(loss),
                "provenance": [start()],
                "scores": [score._asdict() for score in SCORES],
                "summary": {},
                "held_out": {"mlm_nats": nats_N, "mlm_weight": predictions_N},
                "evaluations": {
                    "mask_rates": {"0.15": make_evaluation(loss, 0.15), "0.5": make_evaluation(loss + 0.2, 0.5)},
                    "grammar_probes": {
                        "agreement": {
                            "distance": classes(0.9 + seed / 50, (0, 0), (1, 3), (4, None)),
                            "attractors": classes(0.9, (0, 0), (1, None)),
                        },
                        "recall": {"distance": classes(0.5, (0, 0), (1, None)), "accuracy": 0.45, "optimum": 0.98},
                    },
                },
                "history": [
                    {"step": step, **more}
                    for step in (2, 4)
                    for more in (
                        {
                            "loss": 5.0,
                            "gradient_norm": 0.5 + seed,
                            "learning_rate": 1e-5 / step,
                            "tokens_per_second": 500.0,
                            "tokens": step * (4096.0 + seed) / 4,
                            "timed_seconds": step * (8.0 + seed) / 4,
                        },
                        {f"eval_{name}": value for name, value in make_evaluation(loss + 4 - step).items()},
                    )
                ],
            }
        )
    return results


def get_evaluation(result, rate):
    return result["evaluations"]["mask_rates"][rate]


def build_paper_table(results):
    rows, columns = architectures.table(results)
    rows[0]["accuracy_paper"] = 0.25
    at = [column.name for column in columns].index("accuracy") + 1
    return rows, (*columns[:at], table.Column("accuracy_paper", "accuracy (paper)", ".3f"), *columns[at:])


EXPERIMENT = types.SimpleNamespace(
    __doc__="Is <b>order</b> of use?\n\nSource  </script><script>alert(1)</script>\n",
    table=build_paper_table,
    group=lambda result: result["config"]["model.cell"],
)


def html(results, experiment=EXPERIMENT) -> str:
    """The page alone, without the files beside it."""
    return sweep_page.render_page("sweep", experiment, sweep_page.collect_findings(experiment, results), results, 8)


def alone(root: Path, results, experiment=EXPERIMENT) -> Path:
    (root / "report.html").write_text(html(results, experiment))
    return root / "report.html"


@contextlib.contextmanager
def chromium():
    """A browser; skips the test where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@contextlib.contextmanager
def open_page(browser, page: Path, **settings):
    """A page in a tab; raises AssertionError if it logs anything, or asks for another file."""
    said, asked = [], []
    tab = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"} | settings)
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    if settings.get("java_script_enabled", True):
        tab.wait_for_function(
            "() => [...document.querySelectorAll('figure[data-drawing] .plot')].every(one => one.querySelector('svg'))"
        )
    yield tab
    tab.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
