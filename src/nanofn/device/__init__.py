"""Everything that owns a device: weights, tables, K/V memory, and the executor that runs plans."""
