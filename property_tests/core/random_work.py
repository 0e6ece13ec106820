"""Random whole runs: those of the policy lab, under the name that the tests of this folder import."""

from nanofn.lab.random_work import random_decision, random_event, random_limits, random_request, random_work

__all__ = ["random_decision", "random_event", "random_limits", "random_request", "random_work"]
