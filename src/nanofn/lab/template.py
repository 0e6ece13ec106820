"""A scheduling policy: who runs next.

A policy says whom it would like to run. The engine carries out what fits and refuses the rest, so a policy can be slow or
unfair, but it can never lose a token or a block. `nanofn policy check THIS_FILE` says whether everybody has their turn.
"""

from attrs import frozen

from nanofn.policy import Decision, View


@frozen
class MyPolicy:
    """Serve the running ones in the order they started, then the waiting ones in the order they came."""

    # What the policy remembers from one decision to the next. None is fine. Anything else must be immutable and
    # hashable, for example a frozen record or a tuple. If it holds sequence ids or totals that only grow, give the class
    # a method `normal(policy_state, ranks)` that takes them out, so that `nanofn policy check` ends.
    init: None = None

    def decide(self, policy_state: None, view: View) -> tuple[None, Decision]:
        """Choose. A pure function: no clock (the time is `view.now_us`), no randomness, no files, no globals."""
        budget = view.limits.max_num_batched_tokens
        # Each grant is (sequence, tokens at most), the highest rank first. Too much is trimmed to what is left.
        grants = [(each.sequence_id, budget) for each in view.running]
        # A running one that lacks blocks takes them from those ranked last. A waiting one never takes blocks; the first
        # one that does not fit ends the admission, unless `skip_blocked=True`. Skipping can starve the long ones.
        free = view.num_free_blocks - len(view.running)
        for each in view.waiting:
            free -= each.blocks_needed(each.num_tokens - each.num_cached_tokens) + 1
            if free < 0 and grants:
                break
            grants.append((each.sequence_id, budget))
        return policy_state, Decision(tuple(grants))


my_policy = MyPolicy()
