"""priority: the caller's priority first, then arrival, as in vLLM."""

from nanofn.policy.by_key import by_key

priority = by_key(lambda each: each.priority, is_fixed=True)
"""Smaller `priority` runs first; equal ones in order of arrival. Who lacks blocks takes them from the least important.

Liveness: a sequence waits as long as more important ones keep coming; wrap it in `patience` where they do.
"""
