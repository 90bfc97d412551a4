"""Kinds of cluster by their names for --cluster. To add one: write a module, and add an entry here."""

from mlm.launch.cluster import kubernetes, slurm, tpu

CLUSTERS = {"slurm": slurm.CLUSTER, "tpu": tpu.CLUSTER, "kubernetes": kubernetes.CLUSTER}
