"""The transitions: pure functions from a state and an event to the next state and its effects."""
