"""nanoGPT's recipe for a CPU on the characters of a text, with n-gram models of up to five characters beside it.

    python -m launch.run --config=configs/nanogpt.py --config.data.path=input.txt --config.workdir=runs/nanogpt
"""
from configs.recipes import NANOGPT
from mlm.base import fields
from mlm.base.config import Config


def get_config() -> Config:
    return fields.override(Config(), NANOGPT | {"eval.ngrams": 5})
