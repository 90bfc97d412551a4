"""Encoders by family. A new one: a file with build and CELLS, a row here, and its sizes in configs/sizes.py."""
from mlm.models import feedforward, rnn, transformer

MODELS = {"feedforward": feedforward.build, "rnn": rnn.build, "transformer": transformer.build}
CELLS = {"feedforward": feedforward.CELLS, "rnn": rnn.CELLS, "transformer": transformer.CELLS}
