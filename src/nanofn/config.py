"""The numbers that bound the core's behaviour: header of every event log."""

from attrs import frozen

from nanofn.errors import ConfigError


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Count the blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


@frozen
class Limits:
    """What the core may use. Every plan keeps within it.

    Attributes:
        block_size: Tokens per block.
        num_blocks: Blocks in the pool.
        max_num_seqs: Most sequences running at once, and number of device rows.
        max_num_batched_tokens: Token budget: most tokens that one plan computes.
        max_model_len: Most tokens of a sequence, prompt and output together.
        enable_prefix_caching: Whether computed blocks are published for reuse.
        digest_key: Key of the block digests, up to 64 bytes: randomness as data, so that a run replays.

    Raises:
        ConfigError: A number is out of range, or the pool cannot hold one sequence of `max_model_len`.
    """

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    digest_key: bytes = b"nanofn"

    def __attrs_post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be an integer of at least 1")
        if type(self.max_model_len) is not int or self.max_model_len < 2:
            raise ConfigError(
                f"max_model_len is {self.max_model_len!r}; it must be an integer of at least 2, one prompt and one output token"
            )
        if not 1 <= len(self.digest_key) <= 64:
            raise ConfigError(f"digest_key has {len(self.digest_key)} bytes; it must have 1 to 64")
        # The last token of a sequence is never an input, so it needs no slot.
        needed = blocks_for(self.max_model_len - 1, self.block_size)
        if needed > self.num_blocks:
            raise ConfigError(
                f"max_model_len {self.max_model_len} needs {needed} blocks of {self.block_size} tokens, but the pool has "
                f"{self.num_blocks}; raise num_kv_blocks or lower max_model_len to "
                f"{self.num_blocks * self.block_size + 1}"
            )
