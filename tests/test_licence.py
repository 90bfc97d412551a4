"""What says whose this is, and under which terms, says one thing."""

import hashlib
import tomllib
from pathlib import Path

import pytest
import yaml

import mlm

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def package():
    """The project's metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_and_the_package_agree(package):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys() and cited["cff-version"] == "1.2.0"
    assert cited["title"] == f"{package['name']}: {package['description']}"
    assert (
        [author["name"] for author in cited["authors"]]
        == [author["name"] for author in package["authors"]]
        == ["The mlm authors"]
    )
    assert (cited["version"], cited["license"]) == (mlm.__version__, package["license"])
    assert cited["license"] == "Apache-2.0"


def test_the_licence_is_the_standard_text(package):
    """By the SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt."""
    (name,) = package["license-files"]
    assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == (
        "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    )
