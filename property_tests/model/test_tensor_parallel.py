"""The decoder cut over ranks: each has its heads and its share of the gated unit, and a sum makes them whole."""

from threading import Barrier, Thread

import attrs
import pytest
import torch

from model.checkpoints import make_fixture
from model.paging import relative_error
from nanofn.device.checkpoint import load_checkpoint
from nanofn.errors import ConfigError
from nanofn.model.decoder import compute_logits, forward
from nanofn.model.inputs import ModelInputs
from nanofn.model.kv_cache import allocate_kv_cache, block_bytes
from nanofn.model.params import local_heads

NUM_TOKENS = 20


def rows_of_rank(tensor, sizes, rank, num_ranks):
    """Cut every part of a joined tensor, the parts being `sizes` rows long."""
    return torch.cat([part.chunk(num_ranks)[rank] for part in tensor.split(sizes)])


def gate_up_of_rank(tensor, rank, num_ranks):
    """Cut gate and up, in a mixture those of every expert."""
    return torch.cat([part.chunk(num_ranks, dim=-2)[rank] for part in tensor.chunk(2, dim=-2)], dim=-2)


def shard(params, rank, num_ranks):
    """A rank's share: heads, gate and up by rows, the projections back by columns, everything else whole."""
    config = params.config
    qkv = [count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    layers = [
        attrs.evolve(
            layer,
            qkv_weight=rows_of_rank(layer.qkv_weight, qkv, rank, num_ranks),
            qkv_bias=None if layer.qkv_bias is None else rows_of_rank(layer.qkv_bias, qkv, rank, num_ranks),
            output_weight=layer.output_weight.chunk(num_ranks, dim=1)[rank],
            gate_up_weight=gate_up_of_rank(layer.gate_up_weight, rank, num_ranks),
            down_weight=layer.down_weight.chunk(num_ranks, dim=-1)[rank].contiguous(),
        )
        for layer in params.layers
    ]
    return attrs.evolve(params, layers=tuple(layers), head=params.head.tensor_split(num_ranks)[rank])


class Ranks:
    """Threads that meet at a barrier to combine what each brings."""

    def __init__(self, num_ranks):
        self.barrier = Barrier(num_ranks)
        self.brought = [None] * num_ranks

    def meet(self, rank, value, combine):
        """Bring a tensor; returns the combination of all ranks' tensors."""
        self.brought[rank] = value
        self.barrier.wait()
        combined = combine([x.clone() for x in self.brought])
        self.barrier.wait()
        return combined


@torch.inference_mode()
def logits_of(params, *, num_ranks=1, reduce=lambda x: x, gather=lambda x: x):
    """One prompt's logits."""
    cache = allocate_kv_cache(params.config, 5, 4, dtype=torch.float32, num_ranks=num_ranks)
    places = torch.arange(NUM_TOKENS)
    inputs = ModelInputs(
        token_ids=places * 7 % 211,
        positions=places,
        slot_mapping=places,
        query_start_loc=torch.tensor([0, NUM_TOKENS]),
        seq_lens=torch.tensor([NUM_TOKENS]),
        block_table=torch.arange(5, dtype=torch.int32)[None],
        max_query_len=NUM_TOKENS,
        max_seq_len=NUM_TOKENS,
    )
    return compute_logits(params, forward(params, inputs, cache, num_ranks=num_ranks, reduce=reduce), gather=gather)


@pytest.mark.parametrize("name", ["qwen3 with biases", "qwen3 moe"])
def test_two_ranks_compute_what_one_does(name, tmp_path):
    """Biases of Q, K and V are cut with their heads, that of the output is added once; experts are cut each, routed alike."""
    changes = {"moe_intermediate_size": 16} if "moe" in name else {}
    params = load_checkpoint(make_fixture(name, tmp_path, **changes).folder, dtype=torch.float32).params
    ranks, results = Ranks(2), [None, None]

    def run(rank):
        results[rank] = logits_of(
            shard(params, rank, 2),
            num_ranks=2,
            reduce=lambda x: ranks.meet(rank, x, sum),
            gather=lambda x: ranks.meet(rank, x, lambda parts: torch.cat(parts, dim=1)),
        )

    threads = [Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(results[0], results[1])
    assert relative_error(results[0], logits_of(params)) < 1e-5


def test_heads_that_do_not_divide_are_refused(tmp_path):
    """Three ranks for two key heads: the error says which number to change."""
    config = load_checkpoint(make_fixture("qwen3", tmp_path).folder).config
    with pytest.raises(ConfigError, match="tensor_parallel_size 3 does not divide the model's num_kv_heads 2"):
        local_heads(config, 3)


def test_the_bytes_of_a_block_are_those_that_are_allocated(tmp_path):
    """What memory planning counts is what the cache takes, per rank."""
    config = load_checkpoint(make_fixture("qwen3", tmp_path).folder).config
    for num_ranks in (1, 2):
        for dtype in (torch.float32, torch.bfloat16):
            cache = allocate_kv_cache(config, 3, 16, dtype=dtype, num_ranks=num_ranks)
            taken = sum(tensor.nbytes for tensor in (*cache.k, *cache.v))
            assert taken == 3 * block_bytes(config, 16, dtype=dtype, num_ranks=num_ranks)
            assert cache.block_size == 16
