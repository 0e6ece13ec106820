"""Everything that a step's forward pass reads besides the weights and the K/V cache."""

from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class ModelInputs:
    """One step: entries in any order, each a run of consecutive tokens of one sequence.

    An entry of one token is a decode, or the last token of a prompt: both are computed alike. A longer one is a
    chunk of a prompt and may start anywhere. Everything before an entry's first position is read from the cache.
    An entry of length 0 is padding, as are tokens that no entry owns: their hidden state is 0. A token whose slot is -1
    writes nothing.

    Attributes:
        token_ids: [num_tokens] int64. Packed entry after entry.
        positions: [num_tokens] int64. Place in the sequence, from 0.
        slot_mapping: [num_tokens] int64. block_id * block_size + offset, where this token's K and V go; -1 pads.
        query_start_loc: [num_entries + 1] integer. Entry i owns tokens query_start_loc[i] to query_start_loc[i + 1].
        seq_lens: [num_entries] integer. Tokens to attend to: first position + count. 0 pads.
        block_table: [num_entries, max_blocks_per_seq] int32. Block ids in order; -1 pads.
        max_query_len: Largest count of an entry.
        max_seq_len: Largest of `seq_lens`.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    max_query_len: int
    max_seq_len: int
