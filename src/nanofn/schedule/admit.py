"""admit: a request joins the queue, or is refused for good."""

from attrs import evolve

from nanofn.request import Request, SequenceId
from nanofn.state.chunked import Chunked
from nanofn.state.digest import Digest, prompt_chain
from nanofn.state.effects import Admitted, Rejected, RejectReason
from nanofn.state.engine_state import EngineState
from nanofn.state.sequence import Sequence


def admit(state: EngineState, request: Request) -> tuple[EngineState, tuple[Admitted | Rejected, ...]]:
    """Queue a request's sequences behind everything that arrived before.

    What is admitted can be served: `Limits` guarantee that the pool holds one sequence of `max_model_len`, and a
    sequence never grows beyond that. What can never be served is refused here, and the state is as before.

    Args:
        state: Any state.
        request: What arrived. Its `request_id` must not be live.

    Returns:
        The next state, and Admitted or Rejected.
    """
    problem = _problem(state, request)
    if problem is not None:
        return state, (Rejected(request.request_id, *problem),)
    limits = state.limits
    num_tokens = request.num_prompt_tokens
    chain, tail = Chunked[Digest](), b""
    if limits.enable_prefix_caching:
        chain, tail = prompt_chain(request, limits.block_size, limits.digest_key)
    first = state.next_sequence_id
    children = [
        Sequence(
            sequence_id=SequenceId(first + child),
            request=request,
            child=child,
            num_prompt_tokens=num_tokens,
            max_num_tokens=min(num_tokens + request.max_tokens, limits.max_model_len),
            num_tokens=num_tokens,
            last_output_step=state.num_steps,
            chain=chain,
            tail=tail,
        )
        for child in range(request.n)
    ]
    ids = tuple([sequence.sequence_id for sequence in children])
    state = evolve(
        state,
        waiting=state.waiting.extend([(sequence.sequence_id, sequence) for sequence in children]),
        by_request=state.by_request.set(request.request_id, ids),
        next_sequence_id=SequenceId(first + request.n),
    )
    return state, (Admitted(request.request_id, ids),)


def _problem(state: EngineState, request: Request) -> tuple[RejectReason, int, int] | None:
    """Name what makes a request unservable: (reason, needed, available)."""
    num_tokens, max_model_len = request.num_prompt_tokens, state.limits.max_model_len
    if request.request_id in state.by_request:
        return "repeated_request_id", 1, 0
    if num_tokens < 1:
        return "empty_prompt", 1, num_tokens
    if num_tokens >= max_model_len:
        # At least one output token must fit.
        return "prompt_too_long", num_tokens + 1, max_model_len
    if request.max_tokens < 1:
        return "max_tokens", 1, request.max_tokens
    if request.n < 1:
        return "n", 1, request.n
    return None
