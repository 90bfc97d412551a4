"""SIZES[cell, or family without cells][size]: named after BERT's (Devlin et al. 2019; Turc et al. 2019); micro is ours.

All models of a size have the Transformer's width and depth. `mlp_dim`, or `rnn_dim` for a recurrent cell, is chosen so
that the number of non-embedding parameters is within 3% of the Transformer's (recurrent cells in both directions, a
window of five); a test counts them. micro has four heads: with BERT's 64 units per head it would have one, which is
still at the unigram loss after 300 steps, when four heads are far below it. A bag sees two neighbors on each side,
since every further one blurs the nearest, which are the most informative.
"""

from mlm.base.recipe_constants import WINDOW_NEIGHBORS

_DEPTH_AND_WIDTH = {
    "micro": {"num_layers": 2, "width": 64},
    "tiny": {"num_layers": 2, "width": 128},
    "mini": {"num_layers": 4, "width": 256},
    "small": {"num_layers": 4, "width": 512},
    "medium": {"num_layers": 8, "width": 512},
    "base": {"num_layers": 12, "width": 768},
    "large": {"num_layers": 24, "width": 1024},
}


def _build_sizes(field: str, dims: list[int], **fields) -> dict[str, dict[str, int]]:
    return {
        size: shared | {field: dim} | fields for (size, shared), dim in zip(_DEPTH_AND_WIDTH.items(), dims, strict=True)
    }


SIZES = {
    "transformer": {
        size: entry | {"num_heads": 4 if size == "micro" else entry["width"] // 64}
        for size, entry in _build_sizes("mlp_dim", [256, 512, 1024, 2048, 2048, 3072, 4096]).items()
    },
    "elman": _build_sizes("rnn_dim", [106, 212, 424, 848, 848, 1264, 1680]),
    "gru": _build_sizes("rnn_dim", [58, 116, 232, 464, 464, 688, 912]),
    "lstm": _build_sizes("rnn_dim", [48, 96, 192, 384, 384, 576, 768]),
    "window": _build_sizes("mlp_dim", [226, 448, 1216, 2432, 2752, 4288, 5936], window=WINDOW_NEIGHBORS),
    "bag": _build_sizes("mlp_dim", [370, 736, 1504, 3008, 3040, 4576, 6128], window=2),
}
