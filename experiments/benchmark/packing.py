"""Text to packed rows, by the project and by Hugging Face's tokenizers and datasets, on a chosen number of cores.

Each side works in a process of its own, which is bound to the cores before any library counts them.
"""
import itertools
import shutil
import tempfile
from pathlib import Path

from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.train import resolution

COPIES = 2       # of the standard library's documentation, 1.7 MB each
LENGTH = 128     # tokens of a row
BATCH = 1000     # documents or rows that datasets maps at once, its default


def checked(text: str, cache: str) -> config.Config:
    """WordPiece over paragraphs, packed in full rows: what both sides can do."""
    changes = {"data.path": text, "data.document_boundary": "blank_line", "data.cache": cache,
               "tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 8192, "pack.seq_len": LENGTH}
    return resolution.resolve(fields.override(config.Config(), changes))


def prepare(folder: str) -> tuple[str, str]:
    """Writes the text and learns its vocabulary; returns the text's path and the folder that holds the vocabulary."""
    text, cache = Path(folder, "text.txt"), Path(folder, "cache")
    documents = list(corpus.documents(config.Data(corpus="docstrings"), "train"))
    text.write_text("\n\n".join(f"{copy} {document}" for copy in range(COPIES) for document in documents))
    pack.load(checked(str(text), str(cache)))
    (learnt,) = cache.glob("tokenizer-*")
    return str(text), str(learnt)


def by_ours(text: str, learnt: str) -> int:
    """Packs the text as a training command does and returns the number of rows; the vocabulary is given."""
    with tempfile.TemporaryDirectory() as cache:
        shutil.copytree(learnt, Path(cache, Path(learnt).name))
        return len(pack.load(checked(text, cache)).train["ids"])


def by_datasets(text: str, learnt: str, processes: int | None) -> int:
    """The same with Hugging Face's libraries in their usual form: map to ids, then map to rows of equal length.

    It writes no segments and positions and cuts no sentences, which ours does.
    """
    import datasets
    import tokenizers

    from mlm.base import special

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    (vocabulary,) = Path(learnt).glob("wordpiece.txt")
    entries = vocabulary.read_text().split("\n")
    tool = tokenizers.Tokenizer(tokenizers.models.WordPiece({entry: i for i, entry in enumerate(entries)},
                                                            unk_token=special.SPECIAL[special.UNK]))
    tool.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tool.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()

    def encode(batch):
        return {"ids": [encoding.ids for encoding in tool.encode_batch_fast(batch["text"])]}

    def cut(batch):
        ids = list(itertools.chain.from_iterable(batch["ids"]))
        return {"ids": [ids[i:i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]}

    with tempfile.TemporaryDirectory() as cache:
        documents = datasets.Dataset.from_text(text, cache_dir=cache, sample_by="paragraph")
        ids = documents.map(encode, batched=True, batch_size=BATCH, num_proc=processes, remove_columns=["text"])
        return len(ids.map(cut, batched=True, batch_size=BATCH, num_proc=processes))
