"""What is trained on: documents as one stream of tokens per source, and rows drawn from the streams by share."""

from collections.abc import Mapping, Sequence
from itertools import islice
from random import Random

import torch
from attrs import frozen
from tokenizers import Tokenizer
from torch import Tensor

from nanofn.embedded.conversations import generated
from nanofn.embedded.corpora import Corpus

GENERATED = "generated"
"""The name of the source that is no corpus."""

NUM_HELD_OUT_GENERATED = 400


@frozen(eq=False)
class Stream:
    """Documents one after the other.

    Attributes:
        token_ids: [num_tokens] int32.
        starts: [num_documents] int64. Where each document begins.
    """

    token_ids: Tensor
    starts: Tensor


def all_sources(corpora: Sequence[Corpus], seed: int, num_generated: int) -> dict[str, Corpus]:
    """Name the corpora, and add generated texts: those held out come from another seed and are none of the others."""
    train = tuple(islice(generated(seed), num_generated))
    known = set(train)
    fresh = (text for text in generated(seed + 1) if text not in known)
    written = Corpus(GENERATED, train, tuple(islice(fresh, NUM_HELD_OUT_GENERATED)))
    return {corpus.name: corpus for corpus in (*corpora, written)}


def make_stream(tokenizer: Tokenizer, documents: Sequence[str], seed: int) -> Stream:
    """Shuffle and encode documents."""
    shuffled = list(documents)
    Random(seed).shuffle(shuffled)  # noqa: S311  nothing secret
    encoded = [torch.tensor(each.ids, dtype=torch.int32) for each in tokenizer.encode_batch_fast(shuffled)]
    lengths = torch.tensor([0, *(len(ids) for ids in encoded)])
    return Stream(torch.cat(encoded), lengths.cumsum(0)[:-1])


def draw_rows(
    streams: Mapping[str, Stream],
    shares: Mapping[str, float],
    num_rows: int,
    row_length: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw rows that begin with a document and go on with those that follow it.

    Args:
        streams: By source. A stream shorter than a row begins again.
        shares: How much of the rows each source gives; they need not add up to 1.
        num_rows: How many.
        row_length: Predictions a row.
        generator: Where the choice comes from.

    Returns:
        [num_rows, row_length + 1] int64.

    Mutates:
        The generator.
    """
    names = sorted(streams)
    weights = torch.tensor([shares[name] for name in names])
    sources = torch.multinomial(weights, num_rows, replacement=True, generator=generator).tolist()
    rows = []
    for stream in (streams[names[source]] for source in sources):
        start = stream.starts[torch.randint(len(stream.starts), (), generator=generator)]
        places = (start + torch.arange(row_length + 1)) % len(stream.token_ids)
        rows.append(stream.token_ids[places])
    return torch.stack(rows).to(torch.int64)
