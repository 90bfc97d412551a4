"""SIZES[cell, or family without cells][size]: named after BERT's (Devlin et al. 2019; Turc et al. 2019); micro is ours.

Every row of a size has the Transformer's embedding width and depth; `mlp_dim`, or `rnn_dim` of a recurrent cell, makes its non-embedding parameters
equal the Transformer's within 3%, for recurrent cells in both directions and for a window of five. A test counts them.
With BERT's 64 units a head, micro's single head leaves it at the unigram after 300 steps in which four get far below.
A bag sees two neighbours on each side: each more blurs the nearest ones, which tell most.
"""

_STREAM = {"micro": {"num_layers": 2, "width": 64}, "tiny": {"num_layers": 2, "width": 128}, "mini": {"num_layers": 4,
                                                                                                      "width": 256},
           "small": {"num_layers": 4, "width": 512}, "medium": {"num_layers": 8, "width": 512},
           "base": {"num_layers": 12, "width": 768}, "large": {"num_layers": 24, "width": 1024}}


def _rows(field: str, units: list[int], **fields) -> dict[str, dict[str, int]]:
    return {size: stream | {field: count} | fields
            for (size, stream), count in zip(_STREAM.items(), units, strict=True)}


SIZES = {"transformer": {size: row | {"num_heads": 4 if size == "micro" else row["width"] // 64} for size,
                         row in _rows("mlp_dim", [256, 512, 1024, 2048, 2048, 3072, 4096]).items()},
         "elman": _rows("rnn_dim", [106, 212, 424, 848, 848, 1264, 1680]), "gru": _rows("rnn_dim", [58, 116, 232, 464,
                                                                                                    464, 688, 912]),
         "lstm": _rows("rnn_dim", [48, 96, 192, 384, 384, 576, 768]), "window": _rows("mlp_dim", [226, 448, 1216, 2432,
                                                                                                  2752, 4288, 5936],
                                                                                      window=5), "bag": _rows("mlp_dim",
                                                                                                              [370, 736,
                                                                                                               1504,
                                                                                                               3008,
                                                                                                               3040,
                                                                                                               4576,
                                                                                                               6128],
                                                                                                              window=2)}
