"""Part packing: text to examples here and by Hugging Face's libraries, on one core and on two; a corpus of 1 GB.

Each side has its own process, which is bound to the cores before any library counts them. The corpus of 1 GB is packed
by two processes. A start on it is pack.load_dataset, as `mlm train` calls it, in a process that has not called it
before, with its files in the cache of the system. It takes 3 GB of disk for a while.
"""

import contextlib
import functools
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from experiments.benchmark import peers, side_processes, timing
from mlm.base import config, fields
from mlm.data.rows import pack
from mlm.data.text import corpus
from mlm.training.run import resolution

TEXT_MB, CORPUS_MB, SHARD_MB = 16, 1000, 50  # the text whose packing is timed; the corpus of the starts; its shards
SECONDS = 60  # of rounds of packing
STARTS = 5
CORES = {"one core": 1, "two cores": 2}
LENGTH = 128  # tokens of an example
BATCH = 1000  # documents or examples that datasets maps at once: its default


def make_config(text: str, cache: str, tokenizer_folder: str = "", shard_mb: float = 0.0) -> config.Config:
    """WordPiece over paragraphs, packed in full examples: what both sides can do; without a folder it is trained."""
    trained = {"tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 8192}
    changes = {
        "data.path": text,
        "data.document_boundary": "blank_line",
        "data.cache_dir": cache,
        "pack.seq_len": LENGTH,
        "pack.shard_mb": shard_mb,
        **({"tokenizer.path": tokenizer_folder} if tokenizer_folder else trained),
    }
    return resolution.resolve(fields.override(config.Config(), changes))


def write_text(path: Path, megabytes: float) -> None:
    """Writes the standard library's documentation, 1.7 MB, again and again; a copy's number begins its documents."""
    documents = list(corpus.read_documents(config.Data(corpus="docstrings"), "train"))
    with path.open("w") as file:
        for copy in itertools.count():
            file.writelines(f"\n\n{copy} {document}" for document in documents)
            if file.tell() >= megabytes * 1e6:
                return


def prepare_text(folder: str, megabytes: float = 3) -> tuple[str, str]:
    """Writes the text and trains a tokenizer; returns the paths of the text and of the tokenizer's folder."""
    text, cache = Path(folder, "text.txt"), Path(folder, "cache")
    write_text(text, megabytes)
    pack.load_dataset(make_config(str(text), str(cache)))
    (tokenizer_folder,) = cache.glob("tokenizer-*")
    return str(text), str(tokenizer_folder)


def measure() -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        text, tokenizer_folder = prepare_text(folder, TEXT_MB)
        yield from measure_rates(text, tokenizer_folder)
        large = Path(folder, "large.txt")
        write_text(large, CORPUS_MB)
        yield from measure_corpus(make_config(str(large), f"{folder}/large", tokenizer_folder, SHARD_MB))


def measure_rates(text: str, tokenizer_folder: str) -> Iterator[dict]:
    """MB of text per second on one core and on two, all sides in turns; tokenizers has a thread a core."""
    missing = {name: peers.find_missing(*name.split(" + ")) for name in ("tokenizers", "tokenizers + datasets")}
    for reason in dict.fromkeys(filter(None, missing.values())):
        print(f"Hugging Face's libraries are left out: {reason}")
    jobs, sides = {"ours": pack_with_mlm, "tokenizers": encode_with_tokenizers}, {}
    jobs["tokenizers + datasets"] = pack_with_datasets
    with contextlib.ExitStack() as stack:
        for (title, cores), (name, job) in itertools.product(CORES.items(), jobs.items()):
            if not missing.get(name):
                process = stack.enter_context(side_processes.open_process(cores, tune_malloc=name == "ours"))
                submit = functools.partial(process.submit, job, text, tokenizer_folder, cores)
                sides[f"{title}: {name}"] = lambda submit=submit: submit().result()
        times = timing.measure_times(sides, SECONDS, min_rounds=5, warm_up=1)
    size = os.path.getsize(text) / 1e6
    for title in CORES:
        of_cores = {name: times[f"{title}: {name}"] for name in jobs if f"{title}: {name}" in times}
        yield from timing.make_peer_rows(f"text to packed rows on {title}", "MB/s", of_cores, work=size)
    one, two = (times[f"{title}: ours"] for title in CORES)
    yield timing.make_row("text to packed rows on two cores", "MB/s", two, one, "one core", work=size)


def measure_corpus(cfg: config.Config) -> Iterator[dict]:
    """A corpus packed by two processes, its bytes, and the seconds of a start, beside those with all files hashed."""

    def call(cores, job, *arguments):
        with side_processes.open_process(cores, tune_malloc=True) as process:
            return process.submit(job, *arguments).result()

    seconds, bytes_per_token = call(2, pack_corpus, cfg)
    megabytes = os.path.getsize(cfg.data.path) / 1e6
    title = f"a corpus of {megabytes:,.0f} MB"
    yield timing.make_row(f"{title} to packed rows on two cores", "MB/s", [seconds], work=megabytes)
    yield timing.make_size_row(f"{title}, packed in examples of {LENGTH} tokens", "bytes/token", bytes_per_token)
    starts = {verify: [call(1, time_start, cfg, verify) for _ in range(STARTS)] for verify in (False, True)}
    yield timing.make_row(f"start on {title}, packed", "s", starts[False], starts[True], "all files hashed")


def pack_corpus(cfg: config.Config) -> tuple[float, float]:
    """Packs a corpus by two processes; returns the seconds, and the bytes of a token."""
    start = time.perf_counter()
    packed = pack.load_dataset(cfg, processes=2)
    seconds = time.perf_counter() - start
    num_bytes = sum(path.stat().st_size for folder in packed.folders for path in folder.glob("*.bin"))
    return seconds, num_bytes / sum(packed.manifest[split]["tokens"] for split in packed.splits)


def time_start(cfg: config.Config, verify: bool) -> float:
    """The seconds of a start on a packed corpus."""
    start = time.perf_counter()
    pack.load_dataset(cfg, verify=verify)
    return time.perf_counter() - start


def pack_with_mlm(text: str, tokenizer_folder: str, processes: int) -> None:
    """Packs the text with a given tokenizer, as `mlm pack` does; several processes two shards each."""
    shard_mb = os.path.getsize(text) / corpus.MEGABYTE / processes / 2 if processes > 1 else 0
    with tempfile.TemporaryDirectory() as cache:
        pack.load_dataset(make_config(text, cache, tokenizer_folder, shard_mb), processes=processes)


def build_hub_tokenizer(tokenizer_folder: str):
    """The same WordPiece by Hugging Face's tokenizers."""
    import tokenizers

    from mlm.base import special

    (vocabulary,) = Path(tokenizer_folder).glob("wordpiece.txt")
    entries = vocabulary.read_text().split("\n")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {entry: i for i, entry in enumerate(entries)}, unk_token=special.SPECIAL_TOKENS[special.UNK]
        )
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def encode_with_tokenizers(text: str, tokenizer_folder: str, threads: int) -> None:
    """Turns the documents into ids with tokenizers alone, as many at once as datasets maps; it keeps none of them."""
    tokenizer, documents = build_hub_tokenizer(tokenizer_folder), Path(text).read_text().split("\n\n")
    for start in range(0, len(documents), BATCH):
        tokenizer.encode_batch_fast(documents[start : start + BATCH])


def pack_with_datasets(text: str, tokenizer_folder: str, processes: int) -> int:
    """Packs with Hugging Face's libraries: map to ids, then map to examples of equal length.

    Unlike ours, it writes no segments and positions, and does not keep sentences whole.
    """
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    tokenizer = build_hub_tokenizer(tokenizer_folder)

    def encode(batch):
        return {"ids": [encoding.ids for encoding in tokenizer.encode_batch_fast(batch["text"])]}

    def cut(batch):
        ids = list(itertools.chain.from_iterable(batch["ids"]))
        return {"ids": [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH + 1, LENGTH)]}

    num_proc = processes if processes > 1 else None
    with tempfile.TemporaryDirectory() as cache:
        documents = datasets.Dataset.from_text(text, cache_dir=cache, sample_by="paragraph")
        ids = documents.map(encode, batched=True, batch_size=BATCH, num_proc=num_proc, remove_columns=["text"])
        return len(ids.map(cut, batched=True, batch_size=BATCH, num_proc=num_proc))
