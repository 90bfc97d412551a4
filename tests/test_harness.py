"""Models in the lm-evaluation-harness: what a continuation costs, by hand, and a task to its end."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from layouts import LAYOUTS, TEXT, write
from scipy.special import log_softmax
from small import get_refusal
from test_surprisal import CAUSAL, MASKED, make_model

from mlm.base import config
from mlm.data.tokenizers import kinds

lm_eval = pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
harness = pytest.importorskip("mlm.inference.harness")
managers = pytest.importorskip("lm_eval.tasks")
SENTENCES = [line.strip() for line in TEXT.split("\n") if line.strip()]
LONG = {"pack__seq_len": 64, "model__max_positions": 64}
COLORS = ("red", "blue", "green")


@pytest.fixture(scope="module")
def open_model(tmp_path_factory):
    """Opens a model of random parameters as the harness does: with a tokenizer, and changes of its config."""

    def open_(tokenizer, **changes):
        folder = tmp_path_factory.mktemp("model") / "out"
        make_model(tokenizer, **changes).save_pretrained(str(folder))
        return harness.HarnessModel.create_from_arg_string(f"path={folder}", {"batch_size": 1, "device": None})

    return open_


@pytest.fixture(scope="module")
def words():
    return kinds.train_tokenizer(config.Tokenizer("words", 0), [" ".join(["the", "cow", "is", *COLORS])])


def ask(*pairs):
    return [SimpleNamespace(args=pair) for pair in pairs]


@pytest.mark.parametrize("layout", ["unigram", "wordpiece", "metaspace", "bytes"])
def test_a_continuation_has_what_a_causal_model_s_text_has_more_than_its_context(layout, open_model, tmp_path):
    """Wherever the context is tokenized alone as within the text. A straddling token is the continuation's, whole."""
    if layout in LAYOUTS:
        tokenizer = kinds.load_tokenizer_folder("config.tokenizer.path", str(write(layout, tmp_path)))
    else:
        tokenizer = kinds.train_tokenizer(
            config.Tokenizer(layout, {"unigram": 70, "wordpiece": 180}[layout]), SENTENCES
        )
    model, text = open_model(tokenizer, **CAUSAL | LONG), "The horse  slept? It did! Was that"
    ids, cuts = tokenizer.encode(text), range(len(text))
    contexts = [text[:cut].rstrip() for cut in cuts]
    lengths = [len(tokenizer.encode(context)) for context in contexts]
    clean = [cut for cut in cuts if ids[: lengths[cut]] == tokenizer.encode(contexts[cut])]
    assert len(ids) < 62 and 4 < len(clean) < len(text)
    found = [nats for nats, _ in model.loglikelihood(ask(*((text[:cut], text[cut:]) for cut in cuts)))]
    whole, *before = model.loglikelihood_rolling(ask((text,), *((contexts[cut],) for cut in clean)))
    np.testing.assert_allclose(np.array(found)[clean], whole - np.array(before), rtol=1e-4, atol=1e-4)
    assert found[0] == pytest.approx(whole) and found == sorted(found)
    tokens = model.model.surprisal(text, "token")
    for number, token in enumerate(tokens):
        for cut in range(token.start + 1, token.end):
            assert found[cut] == pytest.approx(-sum(one.nats for one in tokens[number:]))


def test_a_masked_model_reads_all_but_the_token_on_both_sides(open_model, words):
    model, context, continuation = open_model(words, **MASKED), "the cow is", " red the cow"
    ((found, is_likeliest),) = model.loglikelihood(ask((context, continuation)))
    text, ranks, nats = (context + continuation).split(), [], 0.0
    for place in (3, 4, 5):
        masked = " ".join([*text[:place], "[MASK]", *text[place + 1 :]])
        log_probs_V = log_softmax(model.model.logits(masked)[1 + place])
        target = model.model.vocab.index(text[place])
        nats += log_probs_V[target]
        ranks.append(int((log_probs_V > log_probs_V[target]).sum()))
    assert found == pytest.approx(nats, rel=1e-5) and is_likeliest == (ranks == [0, 0, 0])
    assert model.loglikelihood_rolling(ask(("",), ("cow",)))[0] == 0


def test_the_likeliest_continuation_is_one_of_known_tokens(open_model, words):
    model = open_model(words, **CAUSAL)
    each = model.loglikelihood(ask(*(("the cow is", f" {word}") for word in words.pieces[5:])))
    best = max(each)
    assert [pair for pair in each if pair[1]] == [best] or not any(pair[1] for pair in each)
    ((nats, is_likeliest),) = model.loglikelihood(ask(("the cow is", " \u2603")))
    assert nats == 0 and not is_likeliest


def test_a_wrong_argument_and_a_task_that_generates_are_refused_in_a_line(open_model, words, monkeypatch, capsys):
    assert get_refusal(harness.HarnessModel, pth="runs/a").endswith("did you mean 'path'?")
    assert get_refusal(harness.HarnessModel, path=5, trust_remote_code=True).startswith("run '5': ")
    line = get_refusal(open_model(words, **CAUSAL).generate_until, ask(("the", {})))
    assert "generate_until" in line
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: harness.HarnessModel(path="no/run"))
    with pytest.raises(SystemExit, match="2"):
        harness.main()
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [CAUSAL, MASKED], ids=["causal", "mlm"])
def test_tasks_run_to_their_end(changes, open_model, words, tmp_path):
    model = open_model(words, **changes)
    surprisal = {color: model.model.surprisal(f"the cow is {color}", "token")[-1].nats for color in COLORS}
    colors = sorted(COLORS, key=lambda color: -surprisal[color])  # the likeliest last, which is the right one
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "the cow is"}) + "\n")
    rows = {"data_files": {"test": str(tmp_path / "rows.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    shared = {"dataset_path": "json", "dataset_kwargs": rows, "test_split": "test"}
    choice = {"output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_target": 2, "doc_to_choice": colors}
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}"}
    for name, task, metric in (("colors", choice, "acc"), ("texts", rolling, "byte_perplexity")):
        task |= shared | {"task": name, "metric_list": [{"metric": metric}]}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task))
    tasks = managers.TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(model, tasks=["colors", "texts"], task_manager=tasks, bootstrap_iters=0)["results"]
    assert found["colors"]["acc,none"] == 1
    nats = model.model.surprisal("the cow is", "text")[0].nats
    assert found["texts"]["byte_perplexity,none"] == pytest.approx(np.exp(nats / 10))
