"""Bad words: which of a row's words the next token would complete, found where the tokens are."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nanofn.batch.row_start import RowStart
from nanofn.device.tables import send

NO_WORDS = (1, 1)
"""Size of a row of a table that holds no words yet."""

NOTHING = -1
"""Fills words up in front, and rows up behind."""


def word_table(table: Tensor, starts: Sequence[RowStart]) -> Tensor:
    """Enter rows' words.

    Args:
        table: [num_rows, num_words, word_length] int64. Words end in the last column.
        starts: The rows' new owners.

    Returns:
        The table, or a larger one where a row has more or longer words than it has room for.

    Mutates:
        table, if it is large enough.
    """
    if not starts:
        return table
    words_of = [start.sampling.bad_words for start in starts]
    num_words = max(table.shape[1], *map(len, words_of))
    length = max(table.shape[2], *[len(word) for words in words_of for word in words])
    if (num_words, length) != tuple(table.shape[1:]):
        larger = table.new_full((len(table), num_words, length), NOTHING)
        larger[:, : table.shape[1], length - table.shape[2] :] = table
        table = larger
    told = np.full((len(starts), num_words, length), NOTHING, dtype=np.int64)
    for place, words in enumerate(words_of):
        for index, word in enumerate(words):
            told[place, index, length - len(word) :] = word
    rows = send(np.array([start.row for start in starts], dtype=np.int64), table.device)
    table[rows] = send(told, table.device)
    return table


def ending_words(
    table: Tensor, tokens: Tensor, num_prompt_tokens: Tensor, row: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Find the words all of whose tokens but the last one end the output.

    Args:
        table: [num_rows, num_words, word_length] int64. See `word_table`; the last row has no words.
        tokens: [at least num_rows - 1, max_model_len + 1] int64.
        num_prompt_tokens: [num_rows] int32. Where a row's output begins.
        row: [num_entries] int64. -1 is the last row of the table.
        positions: [num_entries] int32. Position of the token being sampled.

    Returns:
        last [num_entries, num_words] int64: the id that would complete the word, 0 where there is no word.
        at_row [num_entries, num_words] int64: the row that it is banned for; -1 where it is not.

    Mutates:
        Nothing.
    """
    words = table[row]
    beginning, last = words[..., :-1], words[..., -1]
    before = beginning.shape[2]
    at = positions.to(torch.int64).unsqueeze(1) + torch.arange(-before, 0, device=row.device)
    ending = tokens[row.unsqueeze(1), at.clamp(min=0)]
    ending = torch.where(at >= num_prompt_tokens[row].unsqueeze(1), ending, NOTHING).unsqueeze(1)
    completes = ((beginning == NOTHING) | (beginning == ending)).all(dim=2) & (last != NOTHING)
    return last.clamp(min=0), torch.where(completes, row.unsqueeze(1), -1)
