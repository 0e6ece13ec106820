"""commit_decodes: the special path of `commit` for a plan in which every running sequence decoded one token.

It does what `commit` does, on whole columns: a test holds the two equal.
"""

from operator import sub

from attrs import evolve

from nanofn.schedule.finish import finish
from nanofn.state.digest import TOKEN_BYTES, next_digest, root_digest, token_bytes
from nanofn.state.effects import Finished, TokensCommitted
from nanofn.state.engine_state import EngineState
from nanofn.state.prefix_index import publish
from nanofn.state.running import Running
from nanofn.state.step_plan import StepPlan, StepResult


def commit_decodes(
    state: EngineState, step_plan: StepPlan, result: StepResult
) -> tuple[EngineState, tuple[TokensCommitted | Finished, ...]] | None:
    """Commit one token for every running sequence; None where the plan or the state is anything else.

    Applies if the entries are exactly the running sequences in order, in their current epochs, each samples for its
    next position, and each has had an output token before.
    """
    running, entries = state.running, step_plan.entries
    if entries.sequence_id != running.sequence_id or entries.epoch != running.epoch or not len(running):
        return None
    if max(entries.num_tokens) > 1 or None in running.first_output_us:
        return None
    counts = tuple([position + 1 for position in entries.first_position])
    if counts != running.num_tokens:
        return None
    ids, tokens = running.sequence_id, result.token_ids
    num_tokens = tuple([count + 1 for count in counts])
    state = evolve(state, running=_with_tokens(state, running, num_tokens, result))
    outputs = tuple(map(sub, num_tokens, [len(request.prompt_token_ids) for request in running.request]))
    endings = [
        Finished(ids[place], "stop", token_id, outputs[place])
        if token_id in request.stop_token_ids and outputs[place] > request.min_tokens
        else Finished(ids[place], "length", None, outputs[place])
        for place, (token_id, request) in enumerate(zip(tokens, running.request, strict=True))
        if (token_id in request.stop_token_ids and outputs[place] > request.min_tokens)
        or num_tokens[place] == running.max_num_tokens[place]
    ]
    if state.limits.enable_prefix_caching:
        state = _with_published(state, counts)
    state, finished = finish(state, endings)
    return state, (TokensCommitted(ids, tokens, outputs), *finished)


def _with_tokens(state: EngineState, running: Running, num_tokens: tuple[int, ...], result: StepResult) -> Running:
    """Append one token to every column that knows of tokens."""
    limits, chains, tails = state.limits, running.chain, running.tail
    if limits.enable_prefix_caching:
        packed = token_bytes(result.token_ids)
        starts = range(0, len(packed), TOKEN_BYTES)
        grown = [tail + packed[start : start + TOKEN_BYTES] for start, tail in zip(starts, tails, strict=True)]
        full = [place for place, count in enumerate(num_tokens) if count % limits.block_size == 0]
        if full:
            longer = list(chains)
            for place in full:
                chain = longer[place]
                parent = chain[-1] if len(chain) else root_digest(running.request[place], limits.digest_key)
                longer[place], grown[place] = chain.push(next_digest(parent, grown[place], limits.digest_key)), b""
            chains = tuple(longer)
        tails = tuple(grown)
    return evolve(
        running,
        num_tokens=num_tokens,
        last_output_us=(result.now_us,) * len(running),
        last_output_step=(state.num_steps,) * len(running),
        chain=chains,
        tail=tails,
    )


def _with_published(state: EngineState, written: tuple[int, ...]) -> EngineState:
    """Publish the blocks whose last position was just written."""
    running, index, size = state.running, state.prefix_index, state.limits.block_size
    for place, count in enumerate(written):
        if count % size == 0:
            block = count // size - 1
            index = publish(index, running.block_table[place][block], running.chain[place][block])
    return evolve(state, prefix_index=index)
