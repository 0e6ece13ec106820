"""Scheduling policies: what a researcher imports. Pure and torch-free.

`plan` carries out what fits of a policy's `Decision`, so a policy can be slow or unfair and never incorrect.
"""

from nanofn.policy.fcfs import fcfs as fcfs
from nanofn.policy.prefill_first import prefill_first as prefill_first
from nanofn.state.decision import Decision as Decision, Policy as Policy
from nanofn.state.view import SequenceView as SequenceView, View as View
