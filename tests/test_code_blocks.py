"""Each code block of the documentation is one that its reader takes, or says why not; test_docs parses commands."""

import importlib.util
import json
import re
import tomllib

import pytest
from test_docs import FENCE, PAGES, ROOT

from mlm.base import errors, fields
from mlm.data.tasks import examples, task_file
from mlm.data.text import sources
from mlm.evaluation import suite


def check_line(line: str) -> None:
    """A line of a shell: a command of mlm, a script or a module of the project, or fields."""
    words = re.sub(r"^([A-Z_]+=\S+ )*", "", line).split("#")[0].split() or ["mlm"]
    if words[0] in ("bash", "python"):
        assert (ROOT / words[1]).is_file() if words[0] == "bash" else importlib.util.find_spec(words[2])
    elif words[0] not in ("mlm", "export", "pip"):
        for word in words:
            fields.check_name(word.partition("=")[0])


def check_block(language: str, code: str, folder) -> None:
    """Raises if the reader of a language does not take a block; of a file, no file that it names is opened."""
    if language in ("bash", ""):
        for line in code.replace("\\\n", " ").splitlines():
            check_line(line)
    elif language == "toml" and "[[sources]]" in code:
        (folder / "corpus.toml").write_text(code)
        sources.read_corpus_file(str(folder / "corpus.toml"))
    elif language == "toml":
        content = tomllib.loads(code)
        is_suite = bool(content.keys() & {*suite.KINDS})
        examples.require_keys(content, (*suite.KINDS, "recipe") if is_suite else task_file.KEYS, "")
        for name, task in (content.get("finetune", {}) if is_suite else {"task": content}).items():
            task_file.parse_task(task, "", folder, name, ())
    elif language == "json":
        assert all(isinstance(json.loads(line), dict) for line in code.splitlines())
    else:  # Python runs in test_docs, differences in test_experiments; text is what a command prints
        assert language in ("python", "diff", "text"), f"no test reads a block of {language}"


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_one_that_its_reader_takes(page, tmp_path):
    for block in FENCE.finditer(PAGES[page]):
        if not block["skip"] or block["language"] != "yaml":
            check_block(block["language"], block["code"], tmp_path)


WRONG = {"bash launch/a.sh": "bash", "python -m no_such": "bash", '{"a": ': "json"}
WRONG |= {'trian = "a.csv"': "toml", "[[sources]]\nwieght = 3": "toml", "[finetune.a]\nformat = 3": "toml", "a": "tcl"}


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_block_is_not(code, tmp_path):
    with pytest.raises((AssertionError, errors.ConfigError, ValueError)):
        check_block(WRONG[code], code, tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if re.search(r"/guides/(?!index)|concepts", page)])
def test_each_guide_shows_a_picture_and_what_a_command_prints(page):
    assert re.search(r"^!\[[^\n]+\]\([^)]+\)", PAGES[page], re.MULTILINE) and "\n```text\n" in PAGES[page]
