"""The model that comes along: a small folder like any other checkpoint's, and the recipe that made it."""
