"""Tensor functions of the decoder: everything they read is an argument, and only the K/V cache is written."""
