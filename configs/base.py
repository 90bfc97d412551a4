"""The base recipe: a tiny Transformer on the built-in language, 1,000 steps of 32 x 128.

    mlm train --config=configs/base.py --config.workdir=runs/base

Every field and its default stand in mlm/base/config.py; a recipe says only what it changes.
"""

from mlm.base.config import Config


def get_config() -> Config:
    return Config()
