"""The engine's mind as a value: immutable records, the block pool, the prefix index and their invariants."""
