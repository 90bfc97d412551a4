"""The entry point of the command `mlm`: sets up the process, then runs the module of the subcommand."""

import contextlib
import ctypes
import difflib
import gc
import importlib
import os
import signal
import sys

from mlm.base import machine

# Memory that glibc returns to the kernel must be faulted in again at every step: keep freed memory, in one arena, with
# huge pages. Tokenizing threads would wait for that arena, so that one thread is faster than two. Processes that this
# one starts read the variables; this one sets by mallopt what has a number in malloc.h.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "TOKENIZERS_PARALLELISM": "false",
}
MALLOPT_NUMBERS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_MAX_": -4, "MALLOC_ARENA_MAX": -8}
COMMANDS = {  # name -> (module of mlm.cli, help)
    "pack": ("pack", "pack a corpus into examples, by several processes"),
    "train": ("train", "train a model, or continue its run"),
    "finetune": ("finetune", "fine-tune a trained model on a task"),
    "evaluate": ("evaluate", "evaluate trained models: pseudo-perplexity, minimal pairs, prompts, translation, ..."),
    "sweep": ("sweep", "list, plan, run, report or submit the points of an experiment"),
    "fill": ("use", "fill the [MASK]s of texts"),
    "embed": ("use", "write embeddings of texts"),
    "similar": ("use", "find the texts, or words, most similar to a text"),
    "score": ("use", "score texts by log-likelihood, or their words and tokens by surprisal"),
    "predict": ("use", "predict labels, numbers or tags with a fine-tuned model"),
    "generate": ("use", "generate text"),
    "translate": ("use", "translate texts"),
    "readability": ("use", "rank passages by how well a model fills their gaps (Taylor 1953), beside Flesch's score"),
    "attention": ("use", "write a page with a text's attention and saliency"),
    "export": ("use", "write a Hugging Face folder"),
    "serve": ("use", "serve a page that shows models side by side"),
    "convert": ("convert", "convert the pickled weights of a Hugging Face folder to safetensors"),
    "floor": ("floor", "print exact probabilities of the built-in language"),
    "config": ("config_help", "list the config fields"),
    "recipes": ("config_help", "list the papers' recipes, of which mlm train --recipe takes one"),
    "completion": ("completion", "print a script of tab completion for bash or zsh"),
}


def main() -> None:
    """Runs the subcommand of the command line, then ends the process."""
    signal.signal(signal.SIGINT, exit_at_once)
    words = sys.argv[1:]
    if words and words[0] in COMMANDS and not {"-h", "--help"} & {*words}:
        os.environ |= compilation_cache_settings() | os.environ
        if "--no-tune_malloc" not in words:
            tune_malloc()
    gc.set_threshold(2**17)  # imports and traces stay alive: a collection every 700 objects would cost 0.3 s
    from mlm.cli import command

    if words[:1] == ["train"]:
        from mlm.launch import child_process

        child_process.attach_to_parent()
    try:
        command.run_main(lambda: run_command(words))
    finally:
        signal.signal(signal.SIGINT, exit_at_once)


def compilation_cache_settings() -> dict[str, str]:
    """JAX keeps compiled programs in a folder of the user, so that only the first start of a program compiles it."""
    folder = machine.cache_folder("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"} if folder else {}


def tune_malloc() -> None:
    """Sets what the environment does not say of malloc, for this process and those that it starts."""
    missing = {name: value for name, value in ALLOCATOR.items() if name not in os.environ}
    os.environ |= missing
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for name in missing.keys() & MALLOPT_NUMBERS.keys():
            mallopt(MALLOPT_NUMBERS[name], int(missing[name]))


def exit_at_once(number, frame):
    """A signal handler that ends the process at once: an exception in the middle of an import could end in an abort."""
    os.write(2, b"\nstopped\n")
    os._exit(128 + number)


def run_command(words: list[str]) -> None:
    """Runs the subcommand that the words name; without words it prints all of them."""
    from mlm.base import errors

    if not words or words[0] in ("-h", "--help", "help"):
        from mlm.cli import command

        print(command.wrap_text(format_overview()))
        return
    if words[0] == "--version":
        from importlib import metadata

        print(metadata.version("mlm"))
        return
    if words[0] not in COMMANDS:
        matches = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"; did you mean mlm {matches[0]}?" if matches else ""
        raise errors.ConfigError(f"mlm {words[0]}: no such command{hint} (mlm --help lists all commands)")
    from mlm.cli import command

    command.check_encoding(words)
    command.configure_logs(has_progress=words[0] in ("pack", "train", "finetune"))
    command.hide_orbax_threads()
    try:
        importlib.import_module(f"mlm.cli.{COMMANDS[words[0]][0]}").main(words)
    except errors.RunStopped as stop:
        print(stop)
        sys.exit(128 + stop.signal)


def format_overview() -> str:
    """The commands with their purposes, as text."""
    width = max(map(len, COMMANDS))
    lines = "".join(f"  {name:{width}}  {help_text}\n" for name, (_, help_text) in COMMANDS.items())
    return (
        f"mlm COMMAND ...: a laboratory for masked language models\n\n{lines}\n"
        "mlm COMMAND --help lists the command's flags; mlm config lists the config fields."
    )
