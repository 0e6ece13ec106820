"""From logits to tokens: parameters as callers give them, and the tensor functions that carry them out."""
