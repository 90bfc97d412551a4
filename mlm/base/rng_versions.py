"""Versions of the random draws: whoever changes a draw must raise its number here.

The versions are part of a run's fingerprint, so that no table mixes results of different draws unnoticed.
"""

RNG_VERSIONS = {
    "language": 1,  # documents of the built-in language (mlm/data/language/grammar.py)
    "batches": 2,  # the examples of each step (mlm/data/rows/loader.py)
    "masks": 2,  # which tokens are masked, by what (mlm/objectives/masking.py; keys: mlm/training/step/update.py)
    "dropout": 2,  # dropout masks (mlm/models/layers.py)
    "parameters": 1,  # initial parameters (mlm/models/)
    "probes": 1,  # items of the probes of the built-in language (mlm/data/language/probes.py)
}
WORD_MASKS = {"word_masks": 2}  # of runs whose masks are of words that may have several tokens, beside the above
