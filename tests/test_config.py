"""Bad configs end in one clear line, before anything is compiled; good ones are named by what they compute."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from small import get_refusal, run_mlm, small_config

from mlm.base import config, errors, fields
from mlm.base.fields import RNG_VERSIONS
from mlm.base.flag import Flag
from mlm.cli import command, config_help, entry, finetune, train, use
from mlm.training.run import loop, resolution

ROOT = Path(__file__).parents[1]


def check(changes):
    loop.check(resolution.resolve(fields.override(config.Config(), changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask.rate": 0.4, "mask.max_rate": 0.2}, ["config.mask.rate = 0.4", "max_rate = 0.2"]),
        ({"mask.schedule": "linear"}, ["config.mask.final_rate = 0.0", "schedule is linear"]),
        (
            {"mask.schedule": "linear", "mask.final_rate": 0.3, "mask.max_rate": 0.2},
            ["final_rate = 0.3", "max_rate = 0.2"],
        ),
        ({"model.family": "feedforward", "model.window": 129}, ["config.model.window = 129", "<= 128"]),
        ({"model.scan_unroll": 3}, ["config.model.scan_unroll = 3", "<= 2"]),
        (
            {"model.family": "mixer", "model.cell": "fnet", "objective": "causal"},
            ["config.model.directionality = 'causal': expected bidirectional", "model.cell is fnet"],
        ),
        (
            {"model.family": "mixer", "model.cell": "gmlp", "model.activation": "geglu"},
            ["config.model.activation = 'geglu'", "without a gate", "model.cell is gmlp"],
        ),
        (
            {"model.positions": "disentangled", "model.position_buckets": 1024},
            ["config.model.position_buckets = 1024", "less than twice config.model.max_positions = 512"],
        ),
        ({"model.num_unique_layers": 3}, ["config.model.num_unique_layers = 3", "a divisor", "num_layers = 2"]),
        (
            {"model.size": "mini", "model.num_unique_layers": 2, "finetune.trainable_layers": 1},
            ["config.finetune.trainable_layers = 1", "-1, 0 or 2", "num_unique_layers is 2"],
        ),
        ({"mask.rate": 0.4, "mask.predict_rate": 0.9}, ["config.mask.masks_per_example = 3", "at most 1 / 0.4"]),
        (
            {"mask.rate": 0.2, "mask.predict_rate": 0.4, "mask.masks_per_example": 1},
            ["config.mask.predict_rate = 0.4", "masks_per_example = 1"],
        ),
        (
            {"mask.mask_token_prob": 0.9, "mask.random_token_prob": 0.2},
            ["mask_token_prob", "random_token_prob", "at most 1"],
        ),
        ({"model.num_heads": 3}, ["config.model.num_heads = 3", "width = 128"]),
        ({"model.family": "transfomer"}, ["'transfomer'", "did you mean 'transformer'"]),
        ({"model.family": "lstm"}, ["'lstm'", "did you mean model.family=rnn model.cell=lstm?"]),
        ({"model.family": "rnn", "model.cell": "gur"}, ["'gur'", "did you mean 'gru'"]),
        ({"model.cell": "lstm"}, ["config.model.cell", "no cells"]),
        ({"model.size": "bsae"}, ["'bsae'", "did you mean 'base'"]),
        ({"pack.seq_len": 1024}, ["config.pack.seq_len = 1024", "max_positions = 512"]),
        ({"objective": "nps"}, ["'nps'", "did you mean 'nsp'"]),
        ({"mask.predict_rate": 1.0}, ["mask.predict_rate = 1.0, from which follows config.mask.masks_per_example"]),
        ({"objective": "nsp"}, ["config.pack.mode", "segment_pair"]),
        ({"data.corpus": "text"}, ["config.data.path"]),
        ({"train.batch_size": 30}, ["config.train.batch_size = 30", "4 devices"]),
        ({"train.grad_accum_steps": 5}, ["config.train.grad_accum_steps = 5", "batch_size = 32"]),
        ({"data.language": 1.0}, ["config.data.language: no such field"]),
        ({"data.corpus": "language", "tokenizer.kind": "unigram"}, ["config.tokenizer.kind = 'unigram'", "words"]),
        ({"data.corpus": "language", "tokenizer.vocab_size": 8192}, ["config.tokenizer.vocab_size = 8192", "language"]),
        (
            {"data.corpus": "language", "pack.mode": "segment_pair"},
            ["config.pack.mode = 'segment_pair'", "doc_sentences"],
        ),
        (
            {"data.corpus": "language", "data.language.max_words": 127},
            ["config.data.language.max_words = 127", "<= 126"],
        ),
        (
            {"data.corpus": "language", "pack.seq_len": 9},
            ["config.pack.seq_len = 9", "config.data.language.max_words = 7", "at least 8"],
        ),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(changes, words):
    message = get_refusal(check, changes)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "rnu", "experiments/architectures.py"], ["did you mean 'run'"]),
        (["generate", "run", "a", f"--seed={2**64}"], ["--seed: '18446744073709551616'", "4294967295"]),
        (["train", "--config.train.steps=many"], ["config.train.steps", "many"]),
        (["train", "--config=configs/bse.py"], ["configs/bse.py"]),
        (["train", "data.sources=config"], ["config.data.sources = 'config'", "did you mean 'configs'"]),
        (["sweep", "run", "experiments/architecture.py"], ["did you mean experiments/architectures.py"]),
        (["sweep", "list", "experiments/architectures.py", "--scale=labtop"], ["did you mean 'laptop'"]),
        (["sweep", "list", "experiments/architectures.py", "--config.seed=1", "--scale=laptop"], ["sweep varies"]),
        (["floor", "score", "--file=nonexistent"], ["--file = 'nonexistent': expected a file (No such file"]),
    ],
)
def test_commands_refuse_what_they_cannot_use(arguments, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    message = get_refusal(entry.run_command, arguments)
    assert all(word in message for word in words), message


def test_a_command_ends_in_one_line_and_exit_code_2():
    done = run_mlm("train", "--config.mask.raet=0.4")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "config.mask.raet" in done.stderr and "did you mean config.mask.rate" in done.stderr


def test_fingerprint_names_what_can_change_a_result_and_nothing_else():
    base = small_config()
    assert fields.fingerprint(base) == fields.fingerprint(small_config(workdir="elsewhere", train__log_every=7))
    others = [small_config(seed=1), small_config(mask__rate=0.2), small_config(model__num_layers=3)]
    assert len({fields.fingerprint(cfg) for cfg in [base, *others]}) == 4


def test_whole_numbers_are_numbers_where_others_may_stand():
    changed = fields.override(config.Config(), {"downstream.epochs": (1, 2.5), "optim.learning_rate": 1})
    assert changed.downstream.epochs == (1.0, 2.5) and list(map(type, changed.downstream.epochs)) == [float, float]
    assert fields.override(changed, {"downstream.batch_sizes": (16,)}).downstream.batch_sizes == (16,)
    fields.check_values(changed)


def test_the_command_line_reaches_every_depth():
    found, others = command.extract_config_flags(
        [
            "run",
            "--config.data.language.topic_strength=1",
            "mask.rate=0.4",
            "--noconfig.mask.mask_unk",
            "--config.eval.mask_rates=(0.2, 0.4)",
            "--config.downstream.batch_sizes",
            "8,16",
            "--points=a",
        ]
    )
    assert others == ["run", "--points=a"]
    assert found.overrides == {
        "data.language.topic_strength": 1.0,
        "mask.rate": 0.4,
        "mask.mask_unk": False,
        "eval.mask_rates": (0.2, 0.4),
        "downstream.batch_sizes": (8, 16),
    }
    assert fields.override(config.Config(), found.overrides).data.language.topic_strength == 1
    for name, default, text in config_help.list_fields():
        assert name in fields.DEFAULT and fields.DEFAULT[name] == default and text.strip()


def test_a_field_that_was_added_later_changes_no_run_made_before():
    cfg = small_config()
    saved = json.loads(json.dumps(fields.build_identity(cfg, {})))
    early = saved | {
        "config": {name: value for name, value in saved["config"].items() if name != "finetune.layerwise_lr_decay"}
    }
    fields.check_identity(cfg, {}, early, "runs/a")
    with pytest.raises(errors.ConfigError, match=r"config.finetune.layerwise_lr_decay = 0.9, there 1.0"):
        fields.check_identity(fields.override(cfg, {"finetune.layerwise_lr_decay": 0.9}), {}, early, "runs/a")
    alone = hashlib.sha256(json.dumps([{"seed": 3}, RNG_VERSIONS], sort_keys=True).encode()).hexdigest()[:12]
    first = fields.override(config.Config(seed=3), fields.FIRST_DEFAULT)
    assert fields.fingerprint(first) == alone  # and so does a field whose default has changed
    assert fields.fingerprint(config.Config(seed=3)) != alone


def test_a_config_never_changes():
    cfg = config.Config()
    before, key = fields.flatten(cfg), hash(cfg)
    sections = [value for value in vars(cfg).values() if dataclasses.is_dataclass(value)]
    for owner in (cfg, cfg.data.language, *sections):
        for name in (dataclasses.fields(owner)[0].name, "stepz"):
            with pytest.raises(dataclasses.FrozenInstanceError, match=rf"{name} of {type(owner).__name__}: .*override"):
                setattr(owner, name, 5)
    other = fields.override(cfg, {"train.steps": 5, "data.language.seed": 1})
    assert (other.train.steps, other.data.language.seed) == (5, 1) and other != cfg
    assert fields.flatten(cfg) == before and hash(cfg) == key == hash(config.Config())


@pytest.mark.parametrize(
    ("workdir", "ready"),
    [("runs/a", "workdir=runs/a-2"), ("runs/a-2/", "workdir=runs/a-3"), ("runs/a b", "'workdir=runs/a b-2'")],
)
def test_a_directory_of_another_run_is_refused_with_a_ready_setting(workdir, ready):
    cfg = config.Config(workdir=workdir)
    saved = fields.build_identity(dataclasses.replace(cfg, seed=3), {})
    with pytest.raises(errors.ConfigError, match=f"config.seed = 0, there 3; .*, such as {ready}$"):
        fields.check_config(cfg, saved, workdir)


def test_a_flag_of_several_values_may_be_given_several_times():
    parser = command.CommandParser()
    flags = Flag("points", (), ""), Flag("sizes", (1, 2), "", kind=int), Flag("files", (), "", "FILE,...")
    command.add_flags(parser, *flags)
    words = "--points=a,b --points=c --files=x,y --files=z"
    joined = "--points=a,b,c --files=x,y,z"
    assert parser.parse_words(words.split()) == parser.parse_words(joined.split())
    assert parser.parse_words(["--sizes=3", "--sizes=4,5"]).sizes == (3, 4, 5)  # in place of the default
    assert parser.parse_words([]).sizes == (1, 2)


@pytest.mark.parametrize(
    ("make_parser", "word", "near"),
    [
        (train.make_parser, "--steps=10", "train.steps=10"),
        (train.make_parser, "--mask.rate=0.3", "mask.rate=0.3"),
        (train.make_parser, "--lr=1", "optim.learning_rate=1"),
        (train.make_parser, "--recip=bert", "--recipe"),
        (finetune.make_parser, "--epoch=3", "--epochs"),
        (lambda: use.make_parser("serve"), "--steps=10", ""),  # it reads no fields
    ],
)
def test_a_flag_that_is_a_field_is_called_as_one(make_parser, word, near):
    with pytest.raises(errors.ConfigError) as error:
        make_parser().parse_words([word] if make_parser is train.make_parser else ["run", word])
    assert str(error.value).endswith(f"; did you mean {near}?" if near else "; see mlm serve --help")
