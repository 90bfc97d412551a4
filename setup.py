"""Installs mlm.

Extras: `cuda`, `tpu`, `gs` and `s3` (buckets), `tfds` (to read TensorFlow Datasets), `hub` (to fetch models by name),
`translate` (to judge translations), `bench` (the benchmark's peers), `test` (to run the suite).
"""
import setuptools

# tensorflow-datasets imports importlib_resources without asking for it.
tfds = ["tensorflow-datasets>=4.9.9", "array_record>=0.7", "importlib_resources>=6.4"]

setuptools.setup(
    name="mlm",
    version="0.1.0",
    description="A laboratory for masked language models in JAX and Flax",
    author="The mlm authors",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    package_data={"mlm.models.native": ["*.cc", "*.h"], "mlm.report.pages": ["*.html", "*.css", "*.js"]},
    packages=setuptools.find_packages(include=["mlm", "mlm.*"]),
    install_requires=[
        # jax 0.11 dropped Python 3.11, and flax follows jax: each Python gets a pair made for one another.
        "jax>=0.10.2,<0.11; python_version<'3.12'",
        "flax>=0.12.8,<0.12.12; python_version<'3.12'",
        "jax>=0.11; python_version>='3.12'",
        "flax>=0.12.12; python_version>='3.12'",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "grain>=0.2.15",
        "sentencepiece>=0.2.1",
        "tokenizers>=0.22",
        "safetensors>=0.8",
        "ml_collections>=1.1",
        "absl-py>=2.3",
        "jinja2>=3.1",
        "matplotlib>=3.10",
        "numpy>=2.1",
        "protobuf>=5",
        "pyphen>=0.17",
        "PyYAML>=6",
        "regex>=2024.11",
        "rich>=14",
        "scipy>=1.15",
        "tabulate>=0.9",
        "tensorboardX>=2.6.4",
        "tqdm>=4.67",
    ],
    extras_require={
        "cuda": ["jax[cuda13]"],
        "tpu": ["jax[tpu]"],
        "gs": ["gcsfs>=2026.9"],
        "s3": ["s3fs>=2026.9"],
        "tfds": tfds,
        "hub": ["huggingface_hub>=1"],
        "translate": ["sacrebleu>=2.6"],
        "bench": ["torch>=2.9", "transformers>=5", "datasets>=4"],
        "test": [*tfds, "ipykernel>=7", "jsonschema>=4.20", "nbclient>=0.10", "playwright>=1.60", "pytest>=8.4",
                 "pytest-xdist>=3.8", "ruff>=0.14", "sacrebleu>=2.6", "scikit-learn>=1.7",
                 "seqeval>=1.2.2"],  # last: peers of scores
    },
)
