"""Kinds of cluster by the name that --on gives them: adding one is a file and a row."""
from launch.cluster import slurm, tpu

CLUSTERS = {"slurm": slurm.CLUSTER, "tpu": tpu.CLUSTER}
