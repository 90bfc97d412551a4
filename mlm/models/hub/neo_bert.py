"""The config.json of NeoBERT (Breton et al. 2025, arXiv 2502.19587), mapped to ours.

transformers has no class for it: its repository has one, which its config.json names. A rotation turns neighboring
entries of a head.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlm.base import config, errors
from mlm.models.hub import settings
from mlm.models.hub.architecture import ARCHITECTURES

ARCHITECTURE = ARCHITECTURES["neobert"]
REPOSITORY = "chandar-lab/NeoBERT"  # whose classes read what is exported


def order_qkv(width: int, num_heads: int) -> np.ndarray:
    """The column of its matrix for each of ours: all queries, keys and values; the halves of a head that rotate."""
    columns_HxPxd = np.arange(3 * width).reshape(num_heads, 3, -1)
    halves_HxPxhx2 = columns_HxPxd[:, :2].reshape(num_heads, 2, -1, 2)
    return np.concatenate([halves_HxPxhx2.transpose(1, 0, 3, 2).ravel(), columns_HxPxd[:, 2].ravel()])


def read_model(where: str, config_json: Mapping[str, Any]) -> tuple[config.Model, int, int]:
    """(config.model, size of the vocabulary, 0) of a config.json, as settings.read_model."""
    auto_map: Any = config_json.get("auto_map", {})
    errors.require(isinstance(auto_map, dict), f"{where}: auto_map", auto_map, "names of classes")
    fields = settings.read_fields(where, config_json, ARCHITECTURE.names)
    fields["mlp_dim"] = -(-(2 * fields["mlp_dim"] // 3) // 8) * 8  # two thirds, a multiple of 8
    max_positions = settings.get_integer(where, config_json, "max_length", 1, 1024)
    model = config.Model(**(fields | ARCHITECTURE.model), max_positions=max_positions)
    return model, settings.get_integer(where, config_json, "vocab_size", 1), 0


def name_published_classes(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """auto_map with the classes of REPOSITORY in place of a file of the folder, which is not written again."""
    auto_map = {key: f"{REPOSITORY}--{str(name).rpartition('--')[2]}" for key, name in config_json["auto_map"].items()}
    return {"auto_map": auto_map}
