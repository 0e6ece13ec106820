"""Scheduling policies: what a researcher imports. Pure and torch-free.

`plan` carries out what fits of a policy's `Decision`, so a policy can be slow or unfair and never incorrect.
Built in: `fcfs` (default), `prefill_first`, `priority`, `shortest_first`, `fair`, `longest_prefix`, `guaranteed`.
Around others: `patience`, `leader`, `watermark`, `quantum`, `shed_if`. From a key: `by_key`.
"""

from nanofn.policy.by_key import by_key as by_key
from nanofn.policy.fair import fair as fair
from nanofn.policy.fcfs import fcfs as fcfs
from nanofn.policy.guaranteed import guaranteed as guaranteed
from nanofn.policy.leader import leader as leader
from nanofn.policy.longest_prefix import longest_prefix as longest_prefix
from nanofn.policy.patience import patience as patience
from nanofn.policy.prefill_first import prefill_first as prefill_first
from nanofn.policy.priority import priority as priority
from nanofn.policy.quantum import quantum as quantum
from nanofn.policy.ranked import ranked as ranked
from nanofn.policy.shed_if import shed_if as shed_if
from nanofn.policy.shortest_first import shortest_first as shortest_first
from nanofn.policy.watermark import watermark as watermark
from nanofn.state.decision import Decision as Decision, Policy as Policy
from nanofn.state.view import SequenceView as SequenceView, View as View
