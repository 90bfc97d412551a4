"""The entry point of the command `mlm`: sets up the process, then runs the module of the subcommand."""

import difflib
import gc
import importlib
import os
import signal
import sys

from mlm.cli import process_environment

COMMANDS = {  # name -> (module of mlm.cli, help)
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
    "serve": ("serve", "serve a page that shows models side by side"),
    "convert": ("convert", "convert the pickled weights of a Hugging Face folder to safetensors"),
    "floor": ("floor", "print exact probabilities of the built-in language"),
    "config": ("config_help", "list the config fields"),
    "recipes": ("recipes", "list the papers' recipes, of which mlm train --recipe takes one"),
    "completion": ("completion", "print a script of tab completion for bash or zsh"),
}


def main() -> None:
    """Runs the subcommand of the command line, then ends the process."""
    signal.signal(signal.SIGINT, process_environment.exit_at_once)
    words = sys.argv[1:]
    if words and words[0] in COMMANDS and not {"-h", "--help"} & {*words}:
        os.environ |= process_environment.compilation_cache_settings() | os.environ
        if "--no-tune_malloc" not in words:
            process_environment.tune_malloc()
    gc.set_threshold(2**17)  # imports and traces stay alive: a collection every 700 objects would cost 0.3 s
    from mlm.cli import command

    if words[:1] == ["train"]:
        from mlm.launch import child_process

        child_process.attach_to_parent()
    command.run_main(lambda: run_command(words))


def run_command(words: list[str]) -> None:
    """Runs the subcommand that the words name; without words it prints all of them."""
    from mlm.base import errors

    if not words or words[0] in ("-h", "--help", "help"):
        print(format_overview())
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
    command.configure_logs(has_progress=words[0] in ("train", "finetune"))
    command.hide_orbax_threads()
    importlib.import_module(f"mlm.cli.{COMMANDS[words[0]][0]}").main(words)


def describe_command(name: str, example: str) -> str:
    """The description of a command: its purpose as a sentence, and an example."""
    purpose = COMMANDS[name][1]
    return f"{purpose[0].upper()}{purpose[1:]}.\n\n    {example}"


def format_overview() -> str:
    """The commands with their purposes, as text."""
    width = max(map(len, COMMANDS))
    lines = "".join(f"  {name:{width}}  {help_text}\n" for name, (_, help_text) in COMMANDS.items())
    return (
        f"mlm COMMAND ...: a laboratory for masked language models\n\n{lines}\n"
        "mlm COMMAND --help lists the command's flags; mlm config lists the config fields."
    )
