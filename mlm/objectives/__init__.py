"""Objectives by name. A new one: a file with build, and a row here."""
from mlm.objectives import mlm, nsp

OBJECTIVES = {"mlm": mlm.build, "nsp": nsp.build}
