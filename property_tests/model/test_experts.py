"""Mixtures of experts against a sum written out, and what a config may say of them."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from model.checkpoints import FAMILIES, make_fixture
from nanofn.device.checkpoint import load_checkpoint
from nanofn.errors import CheckpointError, UnsupportedModelError
from nanofn.model.config import from_dict
from nanofn.model.experts import Routing, mix_experts, route
from nanofn.model.experts_config import ExpertsConfig

HIDDEN, INNER = 8, 16


def experts(num_experts, num_chosen, *, has_normed_weights=True):
    """So many experts."""
    return ExpertsConfig(
        num_experts=num_experts,
        num_experts_per_token=num_chosen,
        intermediate_size=INNER,
        has_normed_weights=has_normed_weights,
    )


def weights(num_experts, generator):
    """Random matrices: router, gate and up, down."""
    shapes = ((num_experts, HIDDEN), (num_experts, 2 * INNER, HIDDEN), (num_experts, HIDDEN, INNER))
    return [torch.randn(shape, generator=generator, dtype=torch.float32) for shape in shapes]


def written_out(x, routing, gate_up, down):
    """Token by token, expert by expert, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(x.double()):
        for expert, share in zip(routing.expert_ids[token].tolist(), routing.weights[token].double(), strict=True):
            gate, up = (gate_up[expert].double() @ row).chunk(2)
            out[token] += share * (down[expert].double() @ (gate * torch.sigmoid(gate) * up))
    return out


@given(data=st.data(), num_tokens=st.integers(0, 20), num_experts=st.integers(1, 9), seed=st.integers(0, 1000))
def test_the_sum_over_chosen_experts_is_the_one_written_out(data, num_tokens, num_experts, seed):
    """Any number of tokens, none included; experts that nobody chose, and one that all chose."""
    chosen = data.draw(st.integers(1, num_experts))
    generator = torch.Generator().manual_seed(seed)
    router, gate_up, down = weights(num_experts, generator)
    x = torch.randn(num_tokens, HIDDEN, generator=generator)
    routing = route(x, router, experts(num_experts, chosen, has_normed_weights=data.draw(st.booleans())))
    found = mix_experts(x, routing, gate_up, down)
    torch.testing.assert_close(found.double(), written_out(x, routing, gate_up, down), rtol=1e-4, atol=1e-4)


def test_a_token_does_not_depend_on_who_else_is_routed():
    """Alone and among forty others that all want the same expert: equal up to the product's own rounding."""
    generator = torch.Generator().manual_seed(1)
    router, gate_up, down = weights(5, generator)
    x = torch.randn(41, HIDDEN, generator=generator)
    x[1:] = x[1]
    many = mix_experts(x, route(x, router, experts(5, 2)), gate_up, down)
    alone = mix_experts(x[:1], route(x[:1], router, experts(5, 2)), gate_up, down)
    torch.testing.assert_close(many[:1], alone, rtol=1e-5, atol=1e-5)


def test_shares_are_of_all_experts_unless_they_are_normed():
    """The best first; normed ones add up to 1, the others to what their experts have of the softmax."""
    x, router = torch.eye(3), torch.tensor([[3.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 5.0], [1.0, 1.0, 1.0]])
    plain = route(x, router, experts(4, 2, has_normed_weights=False))
    normed = route(x, router, experts(4, 2))
    assert plain.expert_ids.tolist() == normed.expert_ids.tolist() == [[0, 1], [1, 3], [2, 3]]
    shares = router.T.softmax(dim=1)
    torch.testing.assert_close(plain.weights, shares.gather(1, plain.expert_ids))
    torch.testing.assert_close(normed.weights.sum(dim=1), torch.ones(3))


def test_nothing_is_read_back_and_no_shape_depends_on_the_routing():
    """What a CUDA graph needs: on tensors without numbers, any look at a number would raise."""
    with FakeTensorMode():
        router, gate_up, down = (
            torch.empty(shape, dtype=torch.bfloat16) for shape in ((8, 16), (8, 32, 16), (8, 16, 16))
        )
        x = torch.empty(5, 16, dtype=torch.bfloat16)
        assert mix_experts(x, route(x, router, experts(8, 3)), gate_up, down).shape == (5, 16)
        with pytest.raises(Exception, match="local_scalar_dense"):
            bool(x.sum() > 0)


@pytest.mark.gpu
def test_a_captured_mixture_follows_the_routing_of_each_replay():
    """Captured with one step's tokens, replayed with others that choose other experts: the bits that eager gives."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((16, 64), (16, 128, 64), (16, 64, 64))
    router, gate_up, down = (torch.randn(shape, generator=generator).bfloat16().cuda() for shape in shapes)
    steps = [torch.randn(9, 64, generator=generator).bfloat16().cuda() for _ in range(4)]
    x, chosen = torch.empty_like(steps[0]), experts(16, 4)

    def compute():
        return mix_experts(x, route(x, router, chosen), gate_up, down)

    x.copy_(steps[0])
    compute()  # what the first call allocates and loads is not part of the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compute()
    for step in steps:
        x.copy_(step)
        graph.replay()
        assert torch.equal(captured, compute())


def test_bfloat16_is_near_float32():
    """The shares are computed in float32 and cast once."""
    generator = torch.Generator().manual_seed(2)
    router, gate_up, down = (tensor.bfloat16() for tensor in weights(6, generator))
    x = torch.randn(30, HIDDEN, generator=generator).bfloat16()
    routing = route(x, router, experts(6, 3))
    assert routing.weights.dtype == torch.bfloat16
    wide = Routing(routing.expert_ids, routing.weights.float())
    expected = mix_experts(x.float(), wide, gate_up.float(), down.float())
    found = mix_experts(x, routing, gate_up, down)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() < 0.02 * expected.abs().max()


def test_layers_are_mixtures_where_transformers_has_them(tmp_path):
    """Every second layer, but for the one that is named: `decoder_sparse_step` and `mlp_only_layers`."""
    fixture = make_fixture("qwen3 moe, some layers dense", tmp_path)
    params = load_checkpoint(tmp_path).params
    expected = [hasattr(layer.mlp, "experts") for layer in fixture.model.model.layers]
    assert [layer.router_weight is not None for layer in params.layers] == expected
    assert expected == [False, True, False, False, False]


CONFIG = {
    "model_type": "qwen3_moe", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": 4096, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}  # fmt: skip


def test_both_names_of_the_number_of_experts_are_read():
    """Published files say num_experts, transformers 5 writes num_local_experts."""
    written = {key: value for key, value in CONFIG.items() if key != "num_experts"} | {"num_local_experts": 8}
    assert from_dict(CONFIG).experts == from_dict(written).experts == experts_of_config()


def experts_of_config():
    """What CONFIG means."""
    return ExpertsConfig(num_experts=8, num_experts_per_token=2, intermediate_size=16, has_normed_weights=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": None}, "no 'num_local_experts'"),
        ({"num_experts": 0}, "num_experts 0"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 and num_experts 8"),
        ({"moe_intermediate_size": None}, "no 'moe_intermediate_size'"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob 'yes'"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step 0"),
        ({"mlp_only_layers": 3}, "mlp_only_layers 3"),
        ({"mlp_only_layers": ["0"]}, r"mlp_only_layers \['0'\]"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_named(change, message):
    """A missing or impossible number is an error of the checkpoint that says which."""
    with pytest.raises(CheckpointError, match=message):
        from_dict(CONFIG | change)


@pytest.mark.parametrize("change", [{"hidden_size": 60, "head_dim": 16}, {"moe_intermediate_size": 20}], ids=str)
def test_widths_that_products_by_group_do_not_take_are_refused(change):
    """By name, before anything is loaded."""
    with pytest.raises(UnsupportedModelError, match="of a mixture is not supported; it must be a multiple of 8"):
        from_dict(CONFIG | change)


def test_a_mixture_without_its_shared_parts_is_noticed(tmp_path):
    """A missing expert is missing by name."""
    make_fixture("qwen3 moe", tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_local_experts": 7', '"num_local_experts": 8'))
    with pytest.raises(CheckpointError, match=r"missing 9 of .*experts\.7\.gate_proj.*misshapen 3"):
        load_checkpoint(tmp_path)


def test_the_fixtures_have_mixtures():
    """The families that the decoder is compared in have one with normed weights and one without, and dense layers."""
    families = [sizes for name, (_, _, sizes) in FAMILIES.items() if "moe" in name]
    assert [bool(sizes.get("norm_topk_prob")) for sizes in families] == [True, False]


@given(
    num_layers=st.integers(1, 12), sparse_step=st.integers(1, 5), dense=st.frozensets(st.integers(-2, 15), max_size=6)
)
def test_mixtures_are_counted_as_layer_after_layer_has_them(num_layers, sparse_step, dense):
    """Whatever dense layers are named, some of them outside the model."""
    config = ExpertsConfig(
        num_experts=2, num_experts_per_token=1, intermediate_size=8, has_normed_weights=True, sparse_step=sparse_step,
        dense_layers=dense,
    )  # fmt: skip
    assert config.num_mixtures(num_layers) == sum(map(config.is_in, range(num_layers)))
