"""A step plan as host arrays: numpy only, no torch, so that any executor can upload them."""
