"""Cells that train in parallel: all tokens at once equal one at a time, and other projects' layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from small import params_of, read_example, small_config

from mlm import models
from mlm.base import config, fields
from mlm.models import lm, parallel_cells, rnn
from mlm.training.run import resolution

pytestmark = pytest.mark.usefixtures("quick_to_compile")

LENGTH = 70  # more than a chunk of ssd
STARTS = {0: [0, 3, 4, 66], 1: [0, 60]}  # of the segments of each example


def read_documented_cell():
    """(the class of docs/extending.md, its row of SIZES)."""
    (_, row), (_, added) = read_example("A recurrent cell").values()
    names = dict(vars(parallel_cells))
    exec(added, names)
    return names["CELLS"]["average"], eval(row.partition(": ")[2].strip(" ,\n"), vars(models))


CELLS = parallel_cells.CELLS | {"of the documentation": read_documented_cell()[0]}


def draw_inputs(cell):
    """(module, parameters, y_LxBxD, same_LxB) of one direction; each has 6 units, a head of ssd 2."""
    model = dataclasses.replace(small_config("rnn", "ssd").model, rnn_dim=6, width=3, state_dim=3)
    module, rng = CELLS[cell](model), np.random.default_rng(0)
    y_LxBxD, same_LxB = rng.normal(size=(LENGTH, 2, 3)).astype(np.float32), np.ones((LENGTH, 2), bool)
    for example, starts in STARTS.items():
        same_LxB[starts, example] = False
    params = params_of(jax.eval_shape(module.init, jax.random.key(0), y_LxBxD, same_LxB)["params"])
    if cell == "ssd":
        params["log_rate"] += 2  # the inverse of a segment's decay overflows
    return module, params, y_LxBxD, same_LxB


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_all_tokens_at_once_equal_one_at_a_time_in_values_and_gradients(cell, monkeypatch):
    """In float64: a gradient of ssd's rates, whose terms cancel out, has three digits in float32."""
    module, *inputs, same_LxB = draw_inputs(cell)
    params, y_LxBxD = jax.tree.map(np.float64, inputs)
    monkeypatch.setattr(jnp, "float32", jnp.float64)
    module = module.clone(model=dataclasses.replace(module.model, dtype="float64"))
    weight_LxBx1 = np.random.default_rng(1).normal(size=(LENGTH, 2, 1)).astype(np.float32)
    apply = lambda params, *inputs: module.apply({"params": params}, *inputs)

    def run_at_once(params, y_LxBxD):
        return apply(params, y_LxBxD, same_LxB)[0]

    def run_by_token(params, y_LxBxD):
        def step(carry, token):
            out_1xBxH, carry = apply(params, *(x[None] for x in token), carry)
            return carry, out_1xBxH[0]

        shapes = jax.eval_shape(lambda: apply(params, y_LxBxD[:1], same_LxB[:1])[1])
        carry = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), shapes)  # which the first token resets
        return jax.lax.scan(step, carry, (y_LxBxD, same_LxB))[1]

    def measure(run):
        loss = lambda *inputs: (lambda out_LxBxH: (jnp.sum(jnp.sin(out_LxBxH) * weight_LxBx1), out_LxBxH))(run(*inputs))
        gradients, out_LxBxH = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, y_LxBxD)
        return out_LxBxH, gradients

    with jax.enable_x64(True):
        at_once, by_token = measure(run_at_once), measure(run_by_token)
    assert all(leaf.dtype == np.float64 and np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(at_once))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-12), at_once, by_token)


@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
def test_a_minimal_cell_is_its_paper_s_equations(cell):
    """By hand, one token after the other (Feng et al. 2024, sections 3.1 and 3.2)."""
    module, params, y_LxBxD, same_LxB = draw_inputs(cell)
    layer, h_BxH, wanted = params["input"], 0.0, []
    *gates, new_LxBxH = np.split(y_LxBxD @ layer["kernel"] + layer["bias"], module.gates, -1)
    open_GxLxBxH = special.expit(np.stack(gates))
    kept_LxBxH, taken_LxBxH = (
        open_GxLxBxH / open_GxLxBxH.sum(0) if cell == "minlstm" else (1 - open_GxLxBxH[0], open_GxLxBxH[0])
    )
    for token in range(LENGTH):
        h_BxH = same_LxB[token, :, None] * kept_LxBxH[token] * h_BxH + taken_LxBxH[token] * new_LxBxH[token]
        wanted.append(h_BxH)
    found_LxBxH = module.apply({"params": params}, y_LxBxD, same_LxB)[0]
    np.testing.assert_allclose(found_LxBxH, wanted, atol=1e-5)


def test_the_cell_of_the_documentation_needs_no_other_line(monkeypatch):
    cell, sizes = read_documented_cell()
    monkeypatch.setitem(parallel_cells.CELLS, "average", cell)
    monkeypatch.setitem(rnn.CELLS, "average", cell)
    monkeypatch.setitem(models.SIZES, "average", sizes)
    monkeypatch.setitem(models.MODELS, "rnn", dataclasses.replace(rnn.SPEC, cells=tuple(rnn.CELLS)))
    counts = []
    for member in ({"model.family": "rnn", "model.cell": "average"}, {}):
        cfg = resolution.resolve(fields.override(config.Config(), member | {"model.size": "micro"}))
        shapes = jax.eval_shape(models.MODELS[cfg.model.family].build(cfg.model, 1000).init, jax.random.key(0))
        counts.append(lm.count_parameters(shapes)["non_embedding"])
    assert abs(counts[0] / counts[1] - 1) < 0.03


@pytest.mark.parametrize("scan", [parallel_cells.scan_by_token, parallel_cells.scan_by_halves])
@pytest.mark.parametrize("reverse", [False, True])
def test_each_form_of_the_scan_is_the_recurrence_and_forgets_at_a_zero(scan, reverse):
    rng = np.random.default_rng(2)
    decay_LxN, update_LxN = rng.uniform(0, 1, (9, 3)).astype(np.float32), rng.normal(size=(9, 3)).astype(np.float32)
    decay_LxN[5] = 0
    h_LxN, h_N = scan(decay_LxN, update_LxN, reverse=reverse), np.zeros(3)
    for place in range(9)[:: -1 if reverse else 1]:
        h_N = decay_LxN[place] * h_N + update_LxN[place]
        np.testing.assert_allclose(h_LxN[place], h_N, rtol=1e-5, atol=1e-6)
    other_LxN = update_LxN + 7 * ((np.arange(9) > 5) if reverse else (np.arange(9) < 5))[:, None].astype(np.float32)
    kept = np.s_[:6] if reverse else np.s_[5:]
    np.testing.assert_array_equal(scan(decay_LxN, other_LxN, reverse=reverse)[kept], h_LxN[kept])


@pytest.mark.parametrize("cell", ["mingru", "minlstm"])
def test_gates_start_with_the_timescales_asked_for(cell):
    longest, y_1x1xD, same_1x1 = 100, np.zeros((1, 1, 5), np.float32), np.ones((1, 1), bool)
    model = dataclasses.replace(small_config("rnn", cell).model, rnn_dim=128, chrono_init=longest)
    module, carry_1xH = parallel_cells.CELLS[cell](model), jnp.ones((1, 128))
    decay_1x1xH, _ = jax.jit(lambda key: module.init_with_output(key, y_1x1xD, same_1x1, carry_1xH)[0])(
        jax.random.key(0)
    )
    tokens = 1 / (1 - np.asarray(decay_1x1xH))  # nothing new comes, so that the state is the decay
    assert tokens.min() > 1.9 and tokens.max() < longest + 0.1 and abs(tokens.mean() - longest / 2) < longest / 10


def test_decays_start_where_the_papers_say():
    key, shape = jax.random.key(0), (1000,)
    first = {
        (0.9, 0.999): jax.nn.sigmoid(parallel_cells.init_rglru_decay(key, shape)),
        (1.0, 16.0): jnp.exp(parallel_cells.init_log_rate(key, shape)),
        (1e-3, 1e-1): jax.nn.softplus(parallel_cells.init_step_bias(key, shape)),
    }
    for (low, high), values in first.items():
        reach = 0.01 * (high - low)
        assert low - 1e-6 <= values.min() < low + reach and high - reach < values.max() <= high + 1e-6
    assert np.median(first[1e-3, 1e-1]) == pytest.approx(1e-2, rel=0.1)  # its logarithm is uniform


@pytest.mark.exhaustive
def test_mamba_2_is_transformers_own():
    torch = pytest.importorskip("torch")
    peer = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    module, params, y_LxBxD, _ = draw_inputs("ssd")
    H, N, P = module.model.rnn_dim, module.model.state_dim, 2
    sizes = {"hidden_size": 3, "expand": 2, "head_dim": P, "num_heads": H // P, "state_size": N, "chunk_size": 16}
    theirs = peer.Mamba2Mixer(peer.Mamba2Config(**sizes, n_groups=1, layer_norm_epsilon=1e-6), 0)
    theirs.out_proj = torch.nn.Identity()
    load_torch(
        theirs,
        {
            "A_log": params["log_rate"],
            "D": params["skip"],
            "dt_bias": params["step_bias"],
            "in_proj.weight": params["input"]["kernel"].T,
            "conv1d.weight": params["conv"]["taps"].T[:, None],
            "conv1d.bias": params["conv"]["bias"],
            "norm.weight": params["norm"]["scale"],
        },
    )
    compare_with_torch(module, params, y_LxBxD, theirs.eval())


@pytest.mark.slow
def test_rglru_is_the_block_of_transformers_recurrent_gemma():
    torch = pytest.importorskip("torch")
    peer = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    module, params, y_LxBxD, _ = draw_inputs("rglru")
    config = peer.RecurrentGemmaConfig(hidden_size=3, lru_width=6, num_attention_heads=1, conv1d_width=4)
    theirs = peer.RecurrentGemmaRecurrentBlock(config, 0)
    theirs.linear_out = torch.nn.Identity()
    (branch, x), (branch_bias, x_bias) = (np.split(params["input"][name], 2, -1) for name in ("kernel", "bias"))
    (r, i), (r_bias, i_bias) = (np.split(params["gates"][name], 2, -1) for name in ("kernel", "bias"))
    load_torch(
        theirs,
        {
            **{
                "linear_y.weight": branch.T,
                "linear_y.bias": branch_bias,
                "linear_x.weight": x.T,
                "linear_x.bias": x_bias,
            },
            "conv_1d.weight": params["conv"]["taps"].T[:, None],
            "conv_1d.bias": params["conv"]["bias"],
            "rg_lru.recurrent_param": -params["decay"],
            **{"rg_lru.recurrent_gate_weight": r[None], "rg_lru.recurrent_gate_bias": r_bias[None]},
            **{"rg_lru.input_gate_weight": i[None], "rg_lru.input_gate_bias": i_bias[None]},
        },
    )
    place_BxL = torch.arange(LENGTH).expand(2, -1)
    compare_with_torch(module, params, y_LxBxD, lambda y_BxLxD: theirs(y_BxLxD, place_BxL, None, use_cache=False)[0])


def load_torch(module, params):
    """Loads all parameters of a module but those of its last product."""
    import torch

    module.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in params.items()})


def compare_with_torch(module, params, y_LxBxD, run):
    """A direction of ours and theirs give equal outputs for examples of one segment each."""
    import torch

    same_LxB = np.arange(LENGTH)[:, None].repeat(2, 1) > 0
    ours_LxBxH, _ = module.apply({"params": params}, y_LxBxD, same_LxB)
    with torch.no_grad():
        theirs_BxLxH = run(torch.from_numpy(y_LxBxD).transpose(0, 1))
    np.testing.assert_allclose(ours_LxBxH, theirs_BxLxH.numpy().swapaxes(0, 1), rtol=1e-5, atol=1e-5)
