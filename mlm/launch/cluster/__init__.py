"""Kinds of cluster by their names for --cluster. To add one: write a module, and add an entry here."""

from mlm.launch.cluster import kubernetes, slurm, tpu
from mlm.launch.cluster.job import Cluster

CLUSTERS: dict[str, Cluster] = {"slurm": slurm, "tpu": tpu, "kubernetes": kubernetes}
