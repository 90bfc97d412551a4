"""Packing text into examples, by this project and by Hugging Face's tokenizers and datasets, on a number of cores.

Each side has its own process, which is bound to the cores before any library counts them.
"""

import itertools
import shutil
import tempfile
from pathlib import Path

from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.training.run import resolution

NUM_COPIES = 2  # of the standard library's documentation, 1.7 MB each
LENGTH = 128  # tokens of an example
BATCH = 1000  # documents or examples that datasets maps at once: its default


def make_config(text: str, cache: str) -> config.Config:
    """WordPiece over paragraphs, packed in full examples: what both sides can do."""
    changes = {
        "data.path": text,
        "data.document_boundary": "blank_line",
        "data.cache_dir": cache,
        "tokenizer.kind": "wordpiece",
        "tokenizer.vocab_size": 8192,
        "pack.seq_len": LENGTH,
    }
    return resolution.resolve(fields.override(config.Config(), changes))


def prepare_text(folder: str) -> tuple[str, str]:
    """Writes the text and trains a tokenizer; returns the paths of the text and of the tokenizer's folder."""
    text, cache = Path(folder, "text.txt"), Path(folder, "cache")
    documents = list(corpus.read_documents(config.Data(corpus="docstrings"), "train"))
    text.write_text("\n\n".join(f"{copy} {document}" for copy in range(NUM_COPIES) for document in documents))
    pack.load_dataset(make_config(str(text), str(cache)))
    (tokenizer_folder,) = cache.glob("tokenizer-*")
    return str(text), str(tokenizer_folder)


def pack_with_mlm(text: str, tokenizer_folder: str) -> int:
    """Packs the text with a given tokenizer, as `mlm train` does; returns the number of examples."""
    with tempfile.TemporaryDirectory() as cache:
        shutil.copytree(tokenizer_folder, Path(cache, Path(tokenizer_folder).name))
        return len(pack.load_dataset(make_config(text, cache)).train["ids"])


def pack_with_datasets(text: str, tokenizer_folder: str, processes: int | None) -> int:
    """The same with Hugging Face's libraries: map to ids, then map to examples of equal length.

    Unlike ours, it writes no segments and positions, and does not keep sentences whole.
    """
    import datasets
    import tokenizers

    from mlm.base import special

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    (vocabulary,) = Path(tokenizer_folder).glob("wordpiece.txt")
    entries = vocabulary.read_text().split("\n")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {entry: i for i, entry in enumerate(entries)}, unk_token=special.SPECIAL_TOKENS[special.UNK]
        )
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()

    def encode(batch):
        return {"ids": [encoding.ids for encoding in tokenizer.encode_batch_fast(batch["text"])]}

    def cut(batch):
        ids = list(itertools.chain.from_iterable(batch["ids"]))
        return {"ids": [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]}

    with tempfile.TemporaryDirectory() as cache:
        documents = datasets.Dataset.from_text(text, cache_dir=cache, sample_by="paragraph")
        ids = documents.map(encode, batched=True, batch_size=BATCH, num_proc=processes, remove_columns=["text"])
        return len(ids.map(cut, batched=True, batch_size=BATCH, num_proc=processes))
