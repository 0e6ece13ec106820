"""The loop and what a caller sees of it: the one place where the state is rebound."""
