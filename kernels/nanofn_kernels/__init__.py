"""Triton kernels for paged text generation, each beside a plain-torch reference of the same name.

Knows nothing of nanofn.
"""
