"""nanofn: generate text from Qwen3-style language models."""
