"""view: what the policy sees of a state."""

from collections.abc import Callable

from nanofn.state.engine_state import EngineState
from nanofn.state.events import Effect
from nanofn.state.view import View


def view(
    state: EngineState,
    now_us: int,
    news: tuple[Effect, ...] = (),
    step_cost: Callable[[int, int, int], int] | None = None,
) -> View:
    """Wrap a state for a policy, in O(1).

    Args:
        state: Any state.
        now_us: Time of the decision, in microseconds of the loop's clock.
        news: Effects since the policy last decided.
        step_cost: See `View`.
    """
    return View(state, now_us, news, step_cost)
