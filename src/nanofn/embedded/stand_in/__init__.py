"""The recipe of the weights in `model/`, as it was when they were trained. It goes when they are replaced."""
