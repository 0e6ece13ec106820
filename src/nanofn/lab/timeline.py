"""timeline: a run as lines that a person can read, one an event, with what every live sequence holds after it."""

from collections.abc import Iterable, Iterator

from nanofn.config import Limits
from nanofn.request import SequenceId
from nanofn.schedule.transition import transition
from nanofn.state.decision import Decision
from nanofn.state.effects import Finished, Preempted, Refused, Rejected, TokensCommitted
from nanofn.state.engine_state import EngineState, initial_state
from nanofn.state.events import (
    Effect,
    Event,
    HintChanged,
    Launched,
    PrefixCacheReset,
    RequestAborted,
    RequestArrived,
    StepCompleted,
    StepDecided,
    StepFailed,
    StopStringMatched,
)
from nanofn.state.sequence import Sequence


def timeline(limits: Limits, events: Iterable[Event], problem: str = "", cycle_start: int | None = None) -> str:
    """Tell a run from its events.

    Sequences are s0, s1, ... by arrival, requests r0, r1, ...; `s0 5/7 [2 0]` has 5 of its 7 known tokens computed and holds
    blocks 2 and 0; `s1 0/3 waits` holds nothing.

    Args:
        limits: The bounds.
        events: From the initial state.
        problem: What is wrong at the end; becomes the last line.
        cycle_start: Number of the event from which on the events repeat for ever.
    """
    given = (
        f"{limits.num_blocks} blocks of {limits.block_size}, {limits.max_num_seqs} rows, {limits.max_num_batched_tokens} tokens "
        f"a step, {limits.max_model_len} tokens a sequence, prefix caching {'on' if limits.enable_prefix_caching else 'off'}"
    )
    return "\n".join([given, *_lines(limits, events, cycle_start), *([f"==> {problem}"] if problem else [])]) + "\n"


def _lines(limits: Limits, events: Iterable[Event], cycle_start: int | None) -> Iterator[str]:
    state = initial_state(limits)
    for number, event in enumerate(events):
        if number == cycle_start:
            yield "  --- from here on, again and again:"
        try:
            state, effects = transition(state, event)
        except Exception as error:  # noqa: BLE001  the last event of a counterexample may be what the core chokes on
            yield f"{number:>3}  {_what(event)}: {type(error).__name__}: {error}"
            return
        done = "; ".join(_happened(effects))
        told = f"{number:>3}  {_what(event)}{': ' + done if done else ''}"
        yield f"{told:<76} | {_held(state)}"


def _what(event: Event) -> str:
    match event:
        case RequestArrived(request):
            children = f", n={request.n}" if request.n > 1 else ""
            kind = f"prompt {request.num_prompt_tokens}, output {request.max_tokens}{children}"
            return f"r{request.request_id} arrives ({kind})"
        case RequestAborted(request_id):
            return f"r{request_id} is aborted"
        case StopStringMatched(sequence_id, count):
            return f"a stop string ends s{sequence_id} after {count} tokens"
        case HintChanged(sequence_id, hint):
            return f"the hint of s{sequence_id} is {hint}"
        case PrefixCacheReset(preempt_running):
            return f"the prefix cache is reset{', running ones are preempted' if preempt_running else ''}"
        case StepDecided(decision):
            return f"decided {_wish(decision)}"
        case StepCompleted(plan_id, result):
            return f"plan {plan_id} gives {list(result.token_ids)}"
        case StepFailed(plan_id):
            return f"plan {plan_id} fails"


def _wish(decision: Decision) -> str:
    parts = [f"s{key}x{'all' if count > 9_999 else count}" for key, count in decision.grants]
    parts += [f"preempt {_names(decision.preempt)}"] if decision.preempt else []
    parts += [f"shed {_names(decision.shed)}"] if decision.shed else []
    parts += [f"victims {_names(decision.victims) or 'none'}"] if decision.victims is not None else []
    return ", ".join(parts) or "nothing"


def _names(ids: tuple[SequenceId, ...]) -> str:
    return " ".join([f"s{sequence_id}" for sequence_id in ids])


def _happened(effects: tuple[Effect, ...]) -> Iterator[str]:
    for effect in effects:
        match effect:
            case Launched(step_plan):
                granted = zip(step_plan.entries.sequence_id, step_plan.entries.num_tokens, strict=True)
                parts = [f"s{key}+{count}" for key, count in granted]
                yield f"plan {step_plan.plan_id} computes {' '.join(parts)}" if parts else "nothing is planned"
            case Preempted(sequence_id):
                yield f"s{sequence_id} loses its blocks"
            case Refused(sequence_id, refusal):
                yield f"s{sequence_id} refused ({refusal})"
            case Rejected(_, reason):
                yield f"rejected ({reason})"
            case Finished(sequence_id, reason):
                yield f"s{sequence_id} ends ({reason})"
            case TokensCommitted(sequence_ids):
                yield f"a token for {_names(sequence_ids)}"
            case _:
                pass


def _held(state: EngineState) -> str:
    live = [*state.running, *state.waiting.values()]
    return ", ".join([_sequence(each) for each in sorted(live, key=lambda each: each.sequence_id)]) or "nobody lives"


def _sequence(each: Sequence) -> str:
    counts = f"s{each.sequence_id} {each.num_computed_tokens}/{each.num_tokens}"
    return f"{counts} waits" if each.row is None else f"{counts} [{' '.join(map(str, each.block_table))}]"
