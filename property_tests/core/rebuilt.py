"""An equal value built in another way: maps filled in another order, tables in other chunks, tuples anew."""

from attrs import evolve, fields, has

from nanofn.state.persistent import Map
from nanofn.state.running import Columns
from nanofn.state.sorted_table import SortedTable
from nanofn.state.steady import Steady


def rebuilt(value, random):
    """Copy a value down to its leaves, so that nothing but equality ties the copy to the original."""
    if isinstance(value, Map):
        pairs = list(value.items.items())
        random.shuffle(pairs)
        copy = Map()
        for key, item in pairs:
            copy = copy.set(key, 0)  # an overwritten entry leaves the trie in another shape of insertion
            copy = copy.set(key, rebuilt(item, random))
        return copy
    if isinstance(value, SortedTable):
        pairs = list(value)
        random.shuffle(pairs)
        copy = SortedTable()
        for key, item in pairs:
            copy = copy.set(key, rebuilt(item, random))
        return copy
    if isinstance(value, Steady):
        return None  # a memo: everything works without it
    if isinstance(value, Columns):
        return Columns(*[rebuilt(item, random) for item in value])
    if isinstance(value, tuple):
        return tuple([rebuilt(item, random) for item in value])
    if has(type(value)):
        return evolve(value, **{each.alias: rebuilt(getattr(value, each.name), random) for each in fields(type(value))})
    return value
