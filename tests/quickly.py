"""XLA's flags where what is run is over before better machine code would be worth the time to make it."""

from importlib import metadata

FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if metadata.version("jaxlib").startswith("0.10."):  # later ones have no other way to write machine code, nor the flag
    FLAGS += " --xla_cpu_use_fusion_emitters=false"

if __name__ == "__main__":
    print(FLAGS)
