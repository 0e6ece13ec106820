"""The sampler against its reference, and the reference against plain definitions and float64."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from nanofn_kernels import sample_few, sample_pick, sample_window
from nanofn_kernels._dispatch import INTERPRETED
from nanofn_kernels.errors import DtypeError, ShapeError
from nanofn_kernels.reference.noise import gumbel_noise
from nanofn_kernels.reference.sample import kept, sample as reference
from nanofn_kernels.sample import KEY_SHIFT, sample, sample_into
from ops.paged import DEVICE

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


class Rows:
    """Random logits with NaN behind every row, and parameters of sampled rows."""

    def __init__(self, rows: int, vocab_size: int, dtype: torch.dtype, *, spread: float = 3.0, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        wide = torch.randn((rows, vocab_size + 3), generator=random) * spread
        wide[:, vocab_size:] = float("nan")
        self.logits = wide.to(dtype).to(DEVICE)[:, :vocab_size]
        self.temperature = (torch.rand(rows, generator=random) + 0.3).to(DEVICE)
        self.seed = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=random).to(DEVICE)
        self.position = torch.randint(0, 2**31 - 1, (rows,), generator=random).to(DEVICE)
        self.child = torch.randint(0, 8, (rows,), generator=random).to(DEVICE)

    def arguments(self, rows: slice = slice(None)) -> tuple[torch.Tensor, ...]:
        """What `sample` takes by position."""
        return tuple(x[rows] for x in (self.logits, self.temperature, self.seed, self.position, self.child))


def cycled(rows: int, values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """The values over and over, one a row."""
    return torch.tensor([values[row % len(values)] for row in range(rows)], dtype=dtype, device=DEVICE)


def filters(rows: int, k: list[int] | None, p: list[float] | None, m: list[float] | None) -> dict[str, torch.Tensor]:
    """Filter arguments, one value a row."""
    given_values = (("top_k", k, torch.int64), ("top_p", p, F32), ("min_p", m, F32))
    return {name: cycled(rows, values, dtype) for name, values, dtype in given_values if values is not None}


def check(rows: Rows, **options: torch.Tensor) -> None:
    """The op equals its reference."""
    ids, is_undefined = sample(*rows.arguments(), **options)
    expected_ids, expected_undefined = reference(*rows.arguments(), **options)
    assert ids.tolist() == expected_ids.tolist()
    assert is_undefined.tolist() == expected_undefined.tolist()


@settings(max_examples=6)
@given(
    vocab_size=st.sampled_from([1, 2, 5, 31, 2048, 2049, 5000]), dtype=st.sampled_from([F16, BF16, F32]),
    greedy=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_unfiltered_rows_equal_the_reference(vocab_size: int, dtype: torch.dtype, greedy: bool, seed: int) -> None:
    """Sampled rows beside greedy ones, around the block size."""
    rows = Rows(3, vocab_size, dtype, seed=seed)
    if greedy:
        rows.temperature[1] = 9e-6
    check(rows)


@pytest.mark.filterwarnings(
    "ignore:(invalid value|overflow|divide by zero) encountered"
)  # numpy, where the interpreter meets NaN
@settings(max_examples=6)
@given(
    vocab_size=st.sampled_from([511, 512, 513, 2900, 6001]), dtype=st.sampled_from([F16, BF16, F32]),
    spread=st.sampled_from([0.0, 1.0, 6.0, 300.0]), order=st.sampled_from(["random", "rising", "falling"]), seed=st.integers(0, 99),
    odd=st.sampled_from([0.0, float("nan"), float("inf"), float("-inf")]), bounded=st.booleans(),
)  # fmt: skip
def test_blocks_that_are_passed_over_hold_nothing_better(
    vocab_size: int, dtype: torch.dtype, spread: float, order: str, seed: int, odd: float, bounded: bool
) -> None:
    """A chunk of many blocks: rising scores, ties, and a number that is none in the last block, which no score calls for."""
    rows = Rows(4, vocab_size, dtype, spread=spread, seed=seed)
    rows.temperature[1], rows.temperature[2] = 0.0, 1e-4
    if order != "random":
        rows.logits[:] = rows.logits.float().sort(dim=1, descending=order == "falling").values.to(dtype)
    rows.logits[0, : vocab_size // 2] = float("-inf")
    if odd:
        rows.logits[3, vocab_size - 1] = odd
        rows.logits[1, vocab_size - 2] = odd
    # Beyond what is decided among gathered ids, so the pick has a bound.
    options = filters(4, [2500], None, None) if bounded else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_pick, "PROGRAMS", 1)
        check(rows, **options)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize(
    ("k", "p", "m"),
    [
        ([1, 3, 50, 0, 10**9], None, None),
        (None, [0.1, 0.9, 0.0, 1.0], None),
        (None, None, [0.3, 0.0, 1.0, 0.01, -1.0]),
        ([20, 400], [0.95, 0.3, 0.8], [0.0, 0.05]),
    ],
    ids=["top_k", "top_p", "min_p", "all"],
)
def test_filtered_rows_equal_the_reference(dtype: torch.dtype, k, p, m) -> None:
    """Every way to switch a filter off, its extremes, and all together."""
    rows = max(len(values) for values in (k, p, m) if values)
    check(Rows(rows, 600, dtype), **filters(rows, k, p, m))


@pytest.mark.parametrize(
    ("vocab_size", "spread", "k", "p", "m"),
    [
        (9_000, 3.0, [50], None, None),
        (8_300, 3.0, [2500], [0.9], None),
        (9_000, 4.0, None, [0.9], None),
        (8_300, 0.3, None, [0.999], None),
        (8_300, 0.0, [3000], None, None),
        (8_300, 1.0, None, None, [0.3]),
    ],
)
def test_rows_longer_than_the_sample_equal_the_reference(vocab_size: int, spread: float, k, p, m, monkeypatch) -> None:
    """Few ids kept and many, ties without end, and k beyond what is decided among gathered ids; a program passes over a row."""
    monkeypatch.setattr(sample_few, "PASSING", 1)
    check(Rows(1, vocab_size, BF16, spread=spread), **filters(1, k, p, m))


def after_the_short_way(rows: Rows, **options: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """Each row's state, 1 done, 2 for the general search, 4 with bounds; and its bounds."""
    logits, temperature, *noise = rows.arguments()
    token_ids = torch.zeros(len(logits), dtype=torch.int32, device=DEVICE)
    given_filters = [options.get(name) for name in ("top_k", "top_p", "min_p")]
    few = sample_few.launch_few(
        token_ids, token_ids.bool(), logits, temperature, *given_filters, *noise, None, KEY_SHIFT[logits.dtype], launch_pdl=False
    )  # fmt: skip
    return few.state[: len(logits)].tolist(), few.bounds


@pytest.fixture
def small(monkeypatch) -> None:
    """A sample of 512 and rows of 150 ids that are many; one program passes over a row."""
    for module, name, value in (
        (sample_few, "SAMPLE", 512), (sample_few, "MANY", 150), (sample_few, "PASSING", 1), (sample_window, "PROGRAMS", 1),
        (sample_pick, "PROGRAMS", 1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def settled(monkeypatch) -> list[tuple[list[int], list[int], list[int]]]:
    """After each pass above windows: the rows' states, and the masses above and in the windows."""
    found = []
    launch = sample_window._settle_kernel

    class Recording:
        def __getitem__(self, grid):
            def run(*arguments, **flags) -> None:
                launch[grid](*arguments, **flags)
                found.append(tuple(arguments[place].tolist() for place in (5, 11, 12)))

            return run

    monkeypatch.setattr(sample_window, "_settle_kernel", Recording())
    return found


needs_kernels = pytest.mark.skipif(
    not INTERPRETED and DEVICE.type == "cpu", reason="kernels run on a GPU or in Triton's interpreter"
)


@needs_kernels
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # numpy, as above
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_min_p_alone_that_keeps_many_needs_the_largest_logit_only(dtype: torch.dtype, small) -> None:
    """Beside rows that keep few, have equal logits only, or no distribution."""
    rows = Rows(8, 1100, dtype, spread=1.0)
    rows.temperature[:] = 1
    rows.logits[1] = -7.0
    rows.logits[2, 100] = 9.0  # between the sample's pieces
    rows.logits[4, 1099], rows.logits[5, 1000], rows.logits[6, 700] = float("nan"), float("inf"), float("inf")
    rows.logits[7] = float("-inf")
    options = filters(8, None, None, [0.05, 0.5, 1e-6, 0.9, 0.05])
    check(rows, **options)
    states, bounds = after_the_short_way(rows, **options)
    assert states[:4] == [4, 4, 4, 1]
    assert bounds[:3, 2].tolist() == rows.logits[:3].float().amax(1).tolist()
    assert reference(*rows.arguments(), **options)[1].tolist() == [False] * 4 + [True] * 4


def after_the_whole_short_way(rows: Rows, **options: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """As `after_the_short_way`, where no row may do without its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_window, "ACCEPTS", False)
        return after_the_short_way(rows, **options)


def assert_bounds_are_right(rows: Rows, **options: torch.Tensor) -> None:
    """The short way decided all rows; its bounds keep what the reference keeps, and the tokens are the reference's."""
    states, bounds = after_the_whole_short_way(rows, **options)
    assert states == [1] * len(states)
    x, ids = rows.logits.float(), torch.arange(rows.logits.shape[1], device=DEVICE)
    end, _, peak, floor = bounds.unsqueeze(2).unbind(1)
    last = bounds.view(torch.int32)[:, 1:2]
    is_kept = ((x > end) | ((x == end) & (ids <= last))) & ((x - peak) / rows.temperature.unsqueeze(1) >= floor)
    expected = kept(rows.logits, rows.temperature, None, options["top_p"], options.get("min_p"))
    assert is_kept.sum(1).tolist() == expected.sum(1).tolist()
    assert torch.equal(is_kept, expected)
    check(rows, **options)


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "spread", "p", "m"),
    [
        (BF16, 0.0, 0.9, [0.1, 0.0]),
        (F32, 0.3, 0.2, None),
        (F16, 1.0, 0.5, None),
        (F32, 1.0, 0.99, [0.1, 0.0]),
        (BF16, 2.0, 0.9, [0.01, 0.0]),
    ],
)
def test_the_end_of_flat_rows_is_found_in_a_window(dtype: torch.dtype, spread: float, p: float, m, small) -> None:
    """Logits as they come, all equal, and of few values, so that the end is among ties; half of them forbidden."""
    rows = Rows(3, 2001, dtype, spread=spread)
    rows.temperature[:] = 1
    rows.logits[1, ::2] = float("-inf")
    rows.logits[2] = rows.logits[2].float().round().to(dtype)
    assert_bounds_are_right(rows, **filters(3, None, [p], m))


@needs_kernels
@pytest.mark.parametrize(("offset", "spread", "p"), [(-300.0, 3.0, 0.5), (-300.0, 3.0, 0.9), (-40.0, 1.0, 0.5)])
def test_a_bound_between_two_negative_logits_is_below_both(offset: float, spread: float, p: float, small) -> None:
    """Logits of bf16 are 2 apart at -300, so the end may be the next number above the bound."""
    rows = Rows(8, 2001, BF16)
    rows.logits = (rows.logits.float().nan_to_num() * (spread / 3) + offset).to(BF16)
    rows.temperature[:] = 1
    options = filters(8, None, [p], None)
    states, bounds = after_the_whole_short_way(rows, **options)
    x, ids = rows.logits.float(), torch.arange(2001, device=DEVICE)
    is_kept = (x > bounds[:, :1]) | ((x == bounds[:, :1]) & (ids <= bounds.view(torch.int32)[:, 1:2]))
    assert states == [1] * 8
    assert is_kept.sum(1).tolist() == kept(rows.logits, rows.temperature, None, options["top_p"], None).sum(1).tolist()
    check(rows, **options)


@needs_kernels
def test_a_window_depends_on_its_row_only(small, settled, monkeypatch) -> None:
    """No bit of the bounds or the masses changes with the other rows or with how many programs share a row."""
    rows, options = Rows(2, 3001, F32, spread=1.0), filters(2, None, [0.9, 0.5], None)
    states, bounds = after_the_whole_short_way(rows, **options)
    monkeypatch.setattr(sample_few, "PASSING", 8)
    monkeypatch.setattr(sample_window, "PROGRAMS", 8)
    assert after_the_whole_short_way(rows, **options)[1].tolist() == bounds.tolist()
    rows.logits, rows.temperature, rows.seed, rows.position, rows.child = rows.arguments(slice(1, 2))
    assert after_the_whole_short_way(rows, top_p=options["top_p"][1:])[1].tolist() == bounds[1:].tolist()
    assert states == [1, 1]
    (_, above, within), (_, *shared), (_, *alone) = settled
    assert [masses[:2] for masses in shared] == [above[:2], within[:2]]  # behind the rows is padding
    assert [masses[0] for masses in alone] == [above[1], within[1]]


@needs_kernels
@pytest.mark.parametrize("m", [None, [0.0, 0.3]])
def test_tokens_in_a_window_and_above_it_are_the_references(m, small, settled, monkeypatch) -> None:
    """One row at many positions: most tokens lie above the window, some in it, where the end decides whether they stay."""
    monkeypatch.setattr(sample_few, "DECIDERS", sample_few.DECIDERS[:1])
    rows = Rows(1, 1500, BF16, spread=1.0)
    number = 40
    rows.logits = rows.logits.expand(number, -1).contiguous()
    rows.temperature, rows.seed, rows.child = (
        x.expand(number).contiguous() for x in (rows.temperature, rows.seed, rows.child)
    )
    rows.position = torch.arange(number, device=DEVICE)
    options = filters(number, None, [0.8], m)
    check(rows, **options)
    states, *_ = settled[0]
    assert 0 < states[:number].count(6) < number / 2


@needs_kernels
def test_a_window_that_misses_the_end_leaves_the_row_to_the_search(small) -> None:
    """The sample has more of the ids that are less likely than the row does, or fewer."""
    rows = Rows(2, 3001, F32, spread=0.3)
    is_sampled = (torch.arange(3001, device=DEVICE) % (3001 // 8) < 64) & (torch.arange(3001, device=DEVICE) < 3000)
    rows.temperature[:] = 1
    rows.logits[0, is_sampled.nonzero()[::4, 0]] -= 1
    rows.logits[1, (~is_sampled).nonzero()[::4, 0]] -= 1
    options = filters(2, None, [0.9], None)
    assert after_the_short_way(rows, **options)[0] == [2, 2]
    check(rows, **options)


@needs_kernels
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # numpy, as above
def test_flat_rows_without_a_distribution_are_flagged(small) -> None:
    """A NaN or an infinity above a window, in it or below it, and nothing but -inf."""
    rows = Rows(4, 3001, F32, spread=1.0)
    rows.logits[0, 2999], rows.logits[1, 2999], rows.logits[2, 5] = float("nan"), float("inf"), float("nan")
    rows.logits[3] = float("-inf")
    options = filters(4, None, [0.9], [0.0, 0.1])
    ids, is_undefined = sample(*rows.arguments(), **options)
    assert ids.tolist() == [0] * 4
    assert is_undefined.tolist() == [True] * 4


def test_an_id_just_as_likely_as_min_p_asks_stays() -> None:
    """1,000 ids lie where the bound for gathering would, did it leave no room, as the largest logit is 0."""
    rows = Rows(1, 8300, F32)
    rows.temperature[:] = 1
    rows.logits[0], rows.logits[0, 100:1100], rows.logits[0, 0] = -50, math.log(0.5), 0
    check(rows, **filters(1, None, None, [0.5]))
    assert 100 <= int(sample(*rows.arguments(), **filters(1, None, None, [0.5]))[0]) < 1100


@needs_kernels
def test_a_rows_mass_does_not_depend_on_the_number_of_programs() -> None:
    """More rows are fewer programs for each: no bit of its mass, and so of where top-p ends, may change."""
    rows = Rows(1, 3001, F32)
    found = []
    for chunk in (512, 1024, 3072):
        tops, sums = torch.empty((2, 6), device=DEVICE)
        sample_few._mass_kernel[(1, -(-3001 // chunk))](
            tops, sums, rows.logits, rows.temperature, None, cycled(1, [0.9], F32), None, 3001, rows.logits.stride(0), chunk,
            GREEDY_BELOW=1e-5, BLOCK=sample_few.BLOCK, TOP_K=False, VALID=False, PDL=False, num_warps=1,
        )  # fmt: skip
        found.append((tops.tolist(), sums.tolist()))
    assert found[0] == found[1] == found[2]
    blocks = rows.logits[0].split(512)
    assert found[0][0] == [float(block.max()) for block in blocks]
    weights = [((block - block.max()).double() / rows.temperature[0]).exp().sum() for block in blocks]
    assert found[0][1] == pytest.approx([float(weight) for weight in weights], rel=1e-5)


def test_many_draws_stay_among_the_kept() -> None:
    """The ids of ten draws are kept ones, and equal the reference's: a wrong bound would show in some of them."""
    rows = Rows(1, 200, BF16, spread=0.5)
    rows.logits, rows.temperature = rows.logits.expand(10, -1), rows.temperature.expand(10).contiguous()
    rows.seed, rows.child = rows.seed.expand(10).contiguous(), rows.child.expand(10).contiguous()
    rows.position = torch.arange(10, device=DEVICE)
    options = filters(10, None, [0.3], None)
    check(rows, **options)
    is_kept = kept(rows.logits, rows.temperature, None, options["top_p"], None)
    ids, _ = sample(*rows.arguments(), **options)
    assert is_kept.gather(1, ids.long().unsqueeze(1)).all()
    assert len(set(ids.tolist())) > 2


def test_greedy_takes_the_lowest_of_the_largest() -> None:
    """Also when filters are on, which never change a greedy row."""
    rows = Rows(2, 3000, F32)
    rows.logits[:, [5, 2047, 2999]] = 40.0
    rows.temperature[:] = 0
    check(rows)
    ids, _ = sample(*rows.arguments(), **filters(2, [1], [0.1], [0.9]))
    assert ids.tolist() == [5, 5]


def test_a_rows_token_does_not_depend_on_its_mates() -> None:
    """Alone and among others, filtered and not."""
    rows = Rows(4, 3000, BF16)
    for options in ({}, filters(4, [30, 0], None, None)):
        whole, _ = sample(*rows.arguments(), **options)
        alone, _ = sample(*rows.arguments(slice(3, 4)), **{name: value[3:4] for name, value in options.items()})
        assert alone.tolist() == whole[3:4].tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, where the interpreter meets infinities
@pytest.mark.parametrize("options", [{}, {"k": [3]}], ids=["plain", "filtered"])
def test_rows_without_a_distribution_are_flagged(options: dict, monkeypatch) -> None:
    """A NaN, an infinity or nothing but -inf gives id 0 and the flag; some -inf is fine; other rows are not touched."""
    for module, name in ((sample_pick, "PROGRAMS"), (sample_few, "PASSING")):
        monkeypatch.setattr(module, name, 1)
    rows = Rows(6, 1100, F32)
    rows.logits[0, 1099], rows.logits[1, 3] = float("nan"), float("inf")
    rows.logits[2], rows.logits[3, 10:] = float("-inf"), float("-inf")
    rows.logits[4, 7], rows.temperature[4] = float("nan"), 0.0
    given_filters = filters(6, options.get("k"), None, None)
    check(rows, **given_filters)
    ids, is_undefined = sample(*rows.arguments(), **given_filters)
    assert is_undefined.tolist() == [True, True, True, False, True, False]
    assert int(ids[3]) < 10


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # numpy, as above
@pytest.mark.parametrize(("k", "p"), [(3000, 0.9), (0, 0.9)])
def test_a_search_ends_in_rows_without_a_distribution(k: int, p: float) -> None:
    """More ids than are gathered at once, and k too large for the short way: NaN as a target of top-p narrows nothing."""
    rows = Rows(3, 9000, F32)
    rows.logits[0, 7], rows.logits[1] = float("inf"), float("-inf")
    given_filters = filters(3, [k], [p], None)
    check(rows, **given_filters)
    assert sample(*rows.arguments(), **given_filters)[1].tolist() == [True, True, False]


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # numpy, as above
def test_a_search_ends_whatever_the_temperature_is() -> None:
    """An infinite one makes NaN of the weights of forbidden ids: no promise what is chosen, but that something is."""
    rows = Rows(2, 9000, F32)
    rows.logits[0, ::2], rows.temperature[0] = float("-inf"), float("inf")
    given_filters = filters(2, [3000, 0], [0.9], None)
    ids, _ = sample(*rows.arguments(), **given_filters)
    assert 0 <= int(ids.min()) <= int(ids.max()) < 9000
    assert int(ids[1]) == int(reference(*rows.arguments(), **given_filters)[0][1])


@pytest.mark.parametrize("filtered", [False, True])
def test_padding_is_not_read_or_written(filtered: bool) -> None:
    """NaN logits, wild parameters and the old contents of the outputs stay what they are."""
    rows = Rows(3, 400, F32)
    rows.logits[1], rows.temperature[1], rows.seed[1] = float("nan"), float("nan"), -1
    is_valid = torch.tensor([True, False, True], device=DEVICE)
    options = filters(3, [5], [0.9], [0.1]) if filtered else {}
    ids = torch.full((3,), -77, dtype=torch.int32, device=DEVICE)
    is_undefined = torch.ones(3, dtype=torch.bool, device=DEVICE)
    sample_into(ids, is_undefined, *rows.arguments(), is_valid=is_valid, **options)
    expected, _ = reference(*rows.arguments(), is_valid=is_valid, **options)
    assert ids.tolist() == [int(expected[0]), -77, int(expected[2])]
    assert is_undefined.tolist() == [False, True, False]
    assert sample(*rows.arguments(), is_valid=is_valid)[0][1] == -1


def plain_kept(logits: list[float], temperature: float, k: int, p: float, m: float) -> set[int]:
    """What the filters keep, in plain Python from the definitions."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if 0 < k < len(logits):
        order = order[:k]
    weights = {i: math.exp((logits[i] - logits[order[0]]) / temperature) for i in order}
    total, before, chosen = sum(weights.values()), 0.0, set()
    for i in order:
        if p >= 1 or before < p * total or not chosen:
            chosen.add(i)
        before += weights[i]
    return {i for i in chosen if m <= 0 or weights[i] >= m or i == order[0]}


@settings(max_examples=200)
@given(
    logits=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=12), k=st.integers(-1, 14),
    temperature=st.sampled_from([0.5, 1.0, 2.0]), p=st.sampled_from([0.0, 0.1, 0.37, 0.8, 0.99, 1.0]),
    m=st.sampled_from([0.0, 0.03, 0.4, 0.97]),
)  # fmt: skip
def test_the_reference_keeps_what_the_definitions_say(logits, temperature, k, p, m) -> None:
    """Exactly k with lower ids first, the id that crosses p, and what is likely enough."""
    top_p, min_p = torch.tensor([p]), torch.tensor([m])
    mask = kept(torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([k]), top_p, min_p)
    # 0.8 is more than 4 of 5 equal ids in float32, and not in float64.
    expected = plain_kept(logits, temperature, k, float(top_p), float(min_p))
    assert set(mask[0].nonzero().flatten().tolist()) == expected


def test_samples_follow_softmax() -> None:
    """Chi-square of 40,000 draws at fixed seeds against float64 softmax, at the 0.1% level."""
    logits = torch.linspace(-1, 2, 12).repeat(40_000, 1)
    ids = torch.arange(40_000)
    drawn, _ = reference(logits, torch.full((40_000,), 0.8), ids * 7 - 10_000, ids, ids % 3)
    expected = torch.softmax(logits[0].double() / 0.8, dim=0) * 40_000
    observed = torch.bincount(drawn.long(), minlength=12).double()
    assert float(((observed - expected) ** 2 / expected).sum()) < 31.26  # 11 degrees of freedom


def test_the_token_is_the_argmax_of_tempered_logits_and_noise() -> None:
    """Written out once for a single row."""
    rows = Rows(1, 50, F32)
    scores = rows.logits.float() / rows.temperature.unsqueeze(1) + gumbel_noise(
        rows.seed, rows.position, rows.child, 50
    )
    assert int(sample(*rows.arguments())[0]) == int(scores.argmax())


def test_wrong_arguments_are_named() -> None:
    """Each raises the error of its kind, with the argument's name."""
    rows = Rows(2, 10, F32)
    with pytest.raises(ShapeError, match="top_k"):
        sample(*rows.arguments(), top_k=torch.ones(3, dtype=torch.int64, device=DEVICE))
    with pytest.raises(DtypeError, match="top_p"):
        sample(*rows.arguments(), top_p=torch.ones(2, dtype=torch.float64, device=DEVICE))
    with pytest.raises(DtypeError, match="seed"):
        sample(rows.logits, rows.temperature, rows.seed.int(), rows.position, rows.child)


def test_the_op_is_well_formed() -> None:
    """Schema and fake hold, mutation included."""
    rows = Rows(2, 20, F32)
    outputs = (torch.zeros(2, dtype=torch.int32, device=DEVICE), torch.zeros(2, dtype=torch.bool, device=DEVICE))
    torch.library.opcheck(sample_into, (*outputs, *rows.arguments()), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(
    ("spread", "options"), [(1.0, {"top_p": 0.9}), (2.0, {"top_p": 0.9, "min_p": 0.01}), (1.0, {"min_p": 0.05})]
)
def test_flat_rows_of_a_real_vocabulary_need_no_search(dtype: torch.dtype, spread: float, options: dict) -> None:
    """They are decided in a window, or min-p alone has bounds for them."""
    rows = Rows(12, 151_936, dtype, spread=spread)
    rows.temperature[:] = 1
    given_filters = {name: cycled(12, [value], F32) for name, value in options.items()}
    assert after_the_short_way(rows, **given_filters)[0] == [1 if "top_p" in options else 4] * 12


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 5.0])
def test_a_real_vocabulary_equals_the_reference(dtype: torch.dtype, spread: float) -> None:
    """On the GPU with 151,936 ids, replayed from a graph with other data than it was captured with."""
    rows = Rows(12, 151_936, dtype, spread=spread)
    for options in ({}, filters(12, [50, 1, 0, 3000], None, None), filters(12, None, [0.9, 0.1, 1.0, 0.5], None),
                    filters(12, None, None, [0.05, 0.5]), filters(12, [20, 300], [0.95, 0.5], [0.0, 0.02])):  # fmt: skip
        expected, _ = reference(*rows.arguments(), **options)
        logits = torch.zeros_like(rows.logits)
        arguments = (logits, *rows.arguments()[1:])
        sample(*arguments, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ids, _ = sample(*arguments, **options)
        logits.copy_(rows.logits)
        graph.replay()
        assert (ids != expected).sum() <= (1 if "top_p" in options else 0)
