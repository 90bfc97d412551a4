"""nanoGPT's recipe for a CPU on the characters of a text, with n-gram models of up to five characters beside it.

mlm train --config=configs/nanogpt.py --config.data.path=input.txt --config.workdir=runs/nanogpt
"""

from mlm.base import fields
from mlm.base.config import Config
from mlm.experiment.recipes import RECIPES


def get_config() -> Config:
    return fields.override(Config(), RECIPES["nanogpt"].fields | {"data.corpus": "text", "eval.ngram_order": 5})
