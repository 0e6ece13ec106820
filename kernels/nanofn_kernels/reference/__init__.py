"""Plain, slow, out-of-place oracles: one module per kernel, with the kernel's name."""
