"""Kinds of cluster by the name that --on gives them: adding one is a file and a row."""
from mlm.launch.cluster import kubernetes, slurm, tpu

CLUSTERS = {"slurm": slurm.CLUSTER, "tpu": tpu.CLUSTER, "kubernetes": kubernetes.CLUSTER}
