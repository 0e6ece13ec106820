"""reset_prefix_cache: forget every published block, for example after new weights."""

from attrs import evolve

from nanofn.schedule.preempt import preempt
from nanofn.state.block_pool import forget_cached
from nanofn.state.effects import Preempted, PrefixCacheCleared
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import PrefixIndex


def reset_prefix_cache(
    state: EngineState, preempt_running: bool
) -> tuple[EngineState, tuple[Preempted | PrefixCacheCleared, ...]]:
    """Empty the prefix index, all or nothing.

    Running sequences may hold published blocks, and blocks they computed may have rested on such. So with any running
    the state stays as it is and there are no effects, unless `preempt_running`: then all of them are preempted first.
    Plans in flight publish nothing afterwards, because their epochs are past.

    Returns:
        The next state; Preempted for each, then PrefixCacheCleared. No effects means that nothing was cleared.
    """
    if len(state.running) and not preempt_running:
        return state, ()
    state, preempted = preempt(state, frozenset(state.running.sequence_id))
    cleared = PrefixCacheCleared(len(state.pool.cached))  # nothing runs, so every published block is free
    return evolve(state, pool=forget_cached(state.pool), prefix_index=PrefixIndex()), (*preempted, cleared)
