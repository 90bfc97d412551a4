"""Versions of what chance decides: a change of any of these draws must change its number here.

They are part of a run's identity, so that results under other draws never stand in one table unnoticed.
"""

RNG_VERSIONS = {
    "language": 1,    # documents of the built-in language (mlm/data/language/grammar.py)
    "batches": 2,     # which rows a step takes (mlm/data/rows/loader.py)
    "masks": 2,       # what is hidden, and by what (mlm/objectives/masking.py; keys: mlm/train/step/update.py)
    "dropout": 2,     # what is dropped (mlm/models/layers.py)
    "parameters": 1,  # the first ones (mlm/models/)
    "probes": 1,      # items asked of the built-in language (mlm/data/language/probes.py)
}
