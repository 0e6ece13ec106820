"""What holds of blocks, hits and the prefix index in every transition that random works reach."""

from invariants.reached import effects_of, runs, steps
from nanofn.lab.random_work import random_work
from nanofn.schedule.plan import plan
from nanofn.schedule.transition import transition
from nanofn.schedule.view import view
from nanofn.state.decision import Decision
from nanofn.state.digest import prompt_chain
from nanofn.state.effects import Refused, Started
from nanofn.state.engine_state import find, initial_state
from nanofn.state.events import Launched, PrefixCacheReset, StepCompleted, StepDecided
from nanofn.state.invariants import live, published
from nanofn.state.prefix_index import match
from nanofn.state.sequence import max_hits


def kept(step):
    """Blocks of sequences that run before and after a transition in one epoch."""
    pairs = [(sequence, step.after.running.get(sequence.sequence_id)) for sequence in step.before.running]
    return {block for was, now in pairs if now is not None and now.epoch == was.epoch for block in was.block_table}


def planned_in(step):
    """The plan that a decision became."""
    (launched,) = effects_of(step, Launched)
    return launched.step_plan


def test_a_block_that_is_not_full_is_nobody_elses() -> None:
    """inv6: beyond the full blocks of its known tokens a sequence shares nothing and offers nothing."""
    count = 0
    for step in steps():
        digests = published(step.after)
        for sequence in step.after.running:
            partial = list(sequence.block_table)[sequence.num_tokens // step.after.limits.block_size :]
            assert not [block for block in partial if block in digests or step.after.pool.shared.get(block)]
            count += len(partial)
    assert count > 500


def test_a_chain_is_the_digest_of_all_full_blocks_from_the_start() -> None:
    """inv12: recomputed from the prompt and the committed tokens, in the middle of runs."""
    count = 0
    for seed in range(5_000, 5_040):
        work = random_work(seed, checked=False)
        state, outputs = initial_state(work.state.limits), {}
        for event in work.log:
            state, effects = transition(state, event)
            for effect in effects:
                if hasattr(effect, "token_ids"):
                    for sequence_id, token_id in zip(effect.sequence_ids, effect.token_ids, strict=True):
                        outputs[sequence_id] = (*outputs.get(sequence_id, ()), token_id)
            if not state.limits.enable_prefix_caching:
                continue
            for sequence in live(state):
                known = (*sequence.request.prompt_token_ids, *outputs.get(sequence.sequence_id, ()))
                asked = type(sequence.request)(0, known, cache_keys=sequence.request.cache_keys)
                chain, tail = prompt_chain(asked, state.limits.block_size, state.limits.digest_key)
                assert (sequence.chain, sequence.tail) == (chain, tail)
                count += len(chain)
    assert count > 500


def test_a_published_prefix_has_its_parent_published() -> None:
    """inv14: release from the tail and eviction of the oldest keep every published block reachable."""
    count = 0
    for run in runs():
        parents = {}
        for step in run:
            for sequence in live(step.after):
                chain = list(sequence.chain)
                parents |= dict(zip(chain[1:], chain, strict=False))
            digests = set(published(step.after).values())
            assert all(parents[digest] in digests for digest in digests if digest in parents)
            count += sum(digest in parents for digest in digests)
    assert count > 500


def test_a_block_is_published_by_the_result_that_filled_it() -> None:
    """inv15: only a result publishes, only blocks its plan wrote to the end in the current epoch, of known tokens."""
    count = 0
    for step in steps():
        new = published(step.after).items() - published(step.before).items()
        if not new:
            continue
        assert isinstance(step.event, StepCompleted)
        size, written = step.before.limits.block_size, {}
        for entry in step.before.in_flight[0].entries:
            sequence = step.before.running.get(entry.sequence_id)
            if sequence is not None and sequence.epoch == entry.epoch:
                end = entry.first_position + entry.num_tokens
                assert end <= sequence.num_tokens
                for place in range(entry.first_position // size, end // size):
                    written[sequence.block_table[place]] = place
        assert {block for block, _ in new} <= set(written)
        count += len(new)
    assert count > 200


def test_a_block_that_is_handed_out_is_offered_no_more() -> None:
    """inv16: every new block of a table that is no hit has left the index."""
    count = 0
    for step in steps(StepDecided):
        step_plan, digests = planned_in(step), published(step.after)
        size = step.after.limits.block_size
        hits = {
            step.after.running.get(effect.sequence_id).row: effect.num_cached_tokens // size
            for effect in effects_of(step, Started)
        }
        new = [block for row, place, block in step_plan.new_blocks if place >= hits.get(row, 0)]
        assert not [block for block in new if block in digests]
        count += len(new)
    assert count > 500


def test_nobody_elses_block_loses_its_prefix() -> None:
    """inv17: only a reset, or an allocation of the very block, takes a published block out of the index."""
    count = 0
    for step in steps():
        before, after = published(step.before), published(step.after)
        lost = {block for block, digest in before.items() if after.get(block) != digest}
        if not lost or isinstance(step.event, PrefixCacheReset):
            continue
        assert isinstance(step.event, StepDecided)
        assert lost <= {block for _, _, block in planned_in(step).new_blocks}
        assert not lost & kept(step)
        count += len(lost)
    assert count > 50


def test_a_hit_is_the_longest_run_of_whole_blocks_short_of_the_last_token() -> None:
    """inv19: whoever starts alone hits as much as the index has, and at least its last token is computed."""
    count = 0
    for step in steps():
        state, digests = step.after, set(published(step.after).values())
        for sequence in state.waiting.values():
            _, step_plan = plan(state, Decision(((sequence.sequence_id, 1_000),)))
            for effect in step_plan.effects:
                if isinstance(effect, Started):
                    chain, size = list(sequence.chain), state.limits.block_size
                    longest = next((place for place, each in enumerate(chain) if each not in digests), len(chain))
                    allowed = (sequence.num_tokens - 1) // size if sequence.request.reads_prefix_cache else 0
                    assert effect.num_cached_tokens == min(longest, allowed) * size
                    assert step_plan.entries[0].first_position < sequence.num_tokens
                    count += effect.num_cached_tokens > 0
    assert count > 100


def test_looking_up_changes_nothing() -> None:
    """inv21: a view and everything in it leave the state as it was."""
    for step in steps()[::10]:
        state = step.after
        before = repr(state)
        for each in (*view(state, 0).running, *view(state, 0).waiting):
            assert each.num_cached_tokens >= 0
            assert each.blocks_needed(3) >= 0
            assert each.is_prefix_pending in (True, False)
            sequence = find(state, each.sequence_id)
            assert len(match(state.prefix_index, sequence.chain, max_hits(sequence, 1))) <= len(sequence.chain)
        assert repr(state) == before


def test_blocks_are_refused_if_and_only_if_they_are_too_few() -> None:
    """inv29: a lone grant without victims is refused for blocks exactly if it needs more than there are."""
    outcomes = {True: 0, False: 0}
    for step in steps():
        state = step.after
        for each in (*view(state, 0).running, *view(state, 0).waiting):
            after, step_plan = plan(state, Decision(((each.sequence_id, 1_000),), victims=()))
            refused = [effect.refusal for effect in step_plan.effects if isinstance(effect, Refused)]
            if refused not in ([], ["blocks"]):
                continue
            left = each.num_remaining_tokens - each.num_cached_tokens
            needed = each.blocks_needed(min(left, state.limits.max_num_batched_tokens))
            assert (needed > state.pool.num_free) == bool(refused)
            assert after.pool.num_free == state.pool.num_free - (0 if refused else needed)
            if refused:
                assert (after.pool, after.running, after.waiting, after.rows) == (
                    state.pool,
                    state.running,
                    state.waiting,
                    state.rows,
                )
            outcomes[bool(refused)] += 1
    assert min(outcomes.values()) > 50
