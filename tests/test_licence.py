"""What says whose this is, and under which terms, says one thing."""
import hashlib
import runpy
from pathlib import Path

import pytest
import setuptools
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def package():
    """What setup.py tells setuptools."""
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **more: told.update(more))
        patch.chdir(ROOT)
        runpy.run_path(str(ROOT / "setup.py"))
    return told


def test_the_citation_and_the_package_agree(package):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys() and cited["cff-version"] == "1.2.0"
    assert cited["title"] == f"{package['name']}: {package['description']}"
    assert [author["name"] for author in cited["authors"]] == [package["author"]] == ["The mlm authors"]
    assert (cited["version"], cited["license"]) == (package["version"], package["license_expression"])
    assert cited["license"] == "Apache-2.0"


def test_the_licence_is_the_standard_text(package):
    """By the SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt."""
    (name,) = package["license_files"]
    assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == (
        "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30")
