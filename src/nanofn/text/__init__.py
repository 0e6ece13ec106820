"""Between text and token ids. The only place that imports transformers."""
