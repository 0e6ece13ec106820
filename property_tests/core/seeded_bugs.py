"""Bugs that engines really had, as patches of the source, and how long it takes to find them.

    nox -s bugs      # the table of docs/testing.md

Each record names the public report. The patch puts the same mistake into this engine, at the place where it would be made.
"""

from time import perf_counter

from attrs import frozen

from core.seeding import Bug, planted

VLLM = "https://github.com/vllm-project/vllm"
SGLANG = "https://github.com/sgl-project/sglang"
MINI = "https://github.com/sgl-project/mini-sglang"
NANO = "https://github.com/GeeeekExplorer/nano-vllm"

BUGS = (
    Bug(
        "a found prefix is not pinned before blocks are allocated",
        "schedule/grant.py",
        "    pool, index, blocks = allocate(pool, state.prefix_index, num_new)\n    waiting, row",
        "    pool, index, blocks = allocate(state.pool, state.prefix_index, num_new)\n"
        "    pool = share(pool, hits)\n    waiting, row",
        f"{VLLM}/pull/37164",
    ),
    Bug(
        "a refused start keeps the pins of its prefix",
        "schedule/grant.py",
        '    if num_new > pool.num_free:\n        return state, "blocks", ()',
        '    if num_new > pool.num_free:\n        return evolve(state, pool=pool), "blocks", ()',
        f"{VLLM}/pull/11565",
    ),
    Bug(
        "a release ignores other owners",
        "state/block_pool.py",
        "        if references is not None:\n",
        "        if references is not None and references > 2:\n",
        f"{MINI}/pull/142",
    ),
    Bug(
        "a block handed out keeps its digest",
        "state/block_pool.py",
        "        index = withdraw(index, evicted)\n",
        "        pass\n",
        f"{NANO}/issues/163",
    ),
    Bug(
        "a digest that two blocks hold is forgotten with the first of them",
        "state/prefix_index.py",
        "() if len(holders) < 2 else tuple([holder for holder in holders if holder != block_id])",
        "()",
        f"{VLLM}/pull/21357",
    ),
    Bug(
        "a later copy of a block takes the first one's place in the index",
        "state/prefix_index.py",
        "holders[digest] = (*before, block_id)",
        "holders[digest] = (block_id,)",
        f"{NANO}/issues/219",
    ),
    Bug(
        "cached blocks do not count as free",
        "state/block_pool.py",
        "return self.num_blocks - self.frontier + len(self.returned) + len(self.cached)",
        "return self.num_blocks - self.frontier + len(self.returned)",
        "https://github.com/InternLM/lmdeploy/pull/4100",
    ),
    Bug(
        "blocks are published when their tokens are known, not when they are written",
        "schedule/commit.py",
        "written = min((entry.first_position + entry.num_tokens) // block_size, len(sequence.chain))",
        "written = min(len(sequence.block_table), len(sequence.chain))",
        f"{VLLM}/pull/43569",
    ),
    Bug(
        "a block is published with its last tokens still to be computed",
        "schedule/commit.py",
        "written = min((entry.first_position + entry.num_tokens) // block_size, len(sequence.chain))",
        "written = min(-(-(entry.first_position + entry.num_tokens) // block_size), len(sequence.chain))",
        f"{SGLANG}/issues/38319",
    ),
    Bug(
        "blocks are published when they are allocated",
        "schedule/grant.py",
        "    state = evolve(state, pool=pool, prefix_index=index, rows=state.rows[:-1], waiting=waiting)\n",
        "    from nanofn.state.prefix_index import publish\n"
        "    index = publish(index, list(zip(blocks, tuple(sequence.chain)[len(hits) :])))\n"
        "    state = evolve(state, pool=pool, prefix_index=index, rows=state.rows[:-1], waiting=waiting)\n",
        f"{NANO}/issues/208",
    ),
    Bug(
        "a fully cached prompt leaves nothing to compute",
        "state/sequence.py",
        "return min((sequence.num_tokens - 1) // block_size, len(sequence.chain))",
        "return len(sequence.chain)",
        f"{NANO}/issues/114",
    ),
    Bug(
        "the tokens to compute are counted before the prefix is looked up",
        "schedule/grant.py",
        "num_tokens = min(num_tokens, sequence.num_tokens - start)",
        "num_tokens = min(num_tokens, sequence.num_tokens)",
        f"{NANO}/pull/207",
    ),
    Bug(
        "a salt does not enter the digests",
        "state/digest.py",
        "repr(request.cache_keys)",
        'repr("")',
        f"{VLLM}/pull/17045",
    ),
    Bug(
        "a salt and an adapter of the same name meet",
        "state/digest.py",
        "repr(request.cache_keys)",
        "repr([value for _, value in request.cache_keys])",
        f"{VLLM}/issues/44701",
    ),
    Bug(
        "the prefix cache is emptied under running sequences",
        "schedule/reset_prefix_cache.py",
        "state, preempted = preempt(state, frozenset(state.running.sequence_id))",
        "preempted = ()",
        f"{VLLM}/pull/28827",
    ),
    Bug(
        "blocks needed is off by one",
        "config.py",
        "    return -(-num_tokens // block_size)",
        "    return num_tokens // block_size",
        f"{NANO}/pull/66",
    ),
    Bug(
        "blocks are counted for committed tokens, not for those in flight",
        "schedule/grant.py",
        "num_new = blocks_for(start + num_tokens, state.limits.block_size) - len(table)",
        "num_new = blocks_for(min(start + num_tokens, sequence.num_tokens), state.limits.block_size) - len(table)",
        f"{SGLANG}/issues/14972",
    ),
    Bug(
        "a victim is taken that the step has planned already",
        "schedule/plan.py",
        "(victim for victim in victims if victim not in ranked)",
        "(victim for victim in victims if victim != sequence_id)",
        f"{VLLM}/pull/26661",
    ),
    Bug(
        "a sequence preempts itself and runs all the same",
        "schedule/plan.py",
        "(victim for victim in victims if victim not in ranked)",
        "(victim for victim in victims if victim == sequence_id or victim not in ranked)",
        "https://github.com/tenstorrent/tt-inference-server/pull/2042",
    ),
    Bug(
        "the sequence after one that preempted is passed over",
        "schedule/plan.py",
        "        is_repeated = sequence_id in ranked\n",
        "        is_repeated = sequence_id in ranked\n"
        "        if news and isinstance(news[-1], Preempted):\n"
        "            news.append(news.pop(0))\n"
        "            continue\n",
        f"{VLLM}/pull/49206",
    ),
    Bug(
        "a preempted sequence keeps its count of computed tokens",
        "schedule/preempt.py",
        "block_table=Chunked(), num_computed_tokens=0)",
        "block_table=Chunked())",
        f"{NANO}/issues/144",
    ),
    Bug(
        "a late result counts as computed for a preempted sequence",
        "schedule/commit.py",
        "            waiting = waiting.set(sequence.sequence_id, sequence)\n",
        "            computed = entry.first_position + entry.num_tokens\n"
        "            waiting = waiting.set(sequence.sequence_id, evolve(sequence, num_computed_tokens=computed))\n",
        f"{VLLM}/pull/48245",
    ),
    Bug(
        "a preempted sequence starts again while a result for it is due",
        "schedule/plan.py",
        "sequence.row is None and sequence.epoch and _is_in_flight(state, sequence.sequence_id)",
        "False",
        f"{VLLM}/pull/46066",
    ),
    Bug(
        "a token goes to the next sequence that is alive",
        "schedule/commit.py",
        "given = [next(tokens) if samples else None for samples in entries.samples]\n"
        "    alive = [key in running or state.waiting.get(key) is not None for key in entries.sequence_id]\n",
        "alive = [key in running or state.waiting.get(key) is not None for key in entries.sequence_id]\n"
        "    given = [next(tokens) if each and here else None for each, here in zip(entries.samples, alive)]\n",
        f"{VLLM}/pull/27756",
    ),
    Bug(
        "preempted sequences wait in the order of their preemption",
        "state/sorted_table.py",
        "        offset = bisect_left(chunk, key, key=_key)\n        is_new",
        "        offset = len(chunk)\n        is_new",
        f"{VLLM}/pull/32173",
    ),
    Bug(
        "an abort keeps the row",
        "schedule/finish.py",
        "            rows = (*rows, sequence.row)\n",
        "            pass\n",
        f"{SGLANG}/pull/20182",
    ),
    Bug(
        "an end keeps the blocks",
        "schedule/finish.py",
        "            pool = release(pool, state.prefix_index, sequence.block_table, sequence.chain)\n",
        "            pass\n",
        f"{VLLM}/pull/34183",
    ),
    Bug(
        "a request is remembered after its last sequence ended",
        "schedule/finish.py",
        "by_request.set(request_id, left) if left else by_request.discard(request_id)",
        "by_request.set(request_id, left)",
        f"{VLLM}/pull/17567",
    ),
    Bug(
        "a row is given out twice",
        "schedule/grant.py",
        "rows=state.rows[:-1]",
        "rows=state.rows",
        f"{SGLANG}/pull/18803",
    ),
    Bug(
        "a failed step keeps what it had taken",
        "schedule/fail.py",
        "return preempt(evolve(state, in_flight=kept), frozenset(lost))",
        "return evolve(state, in_flight=kept), ()",
        "https://github.com/guoqingbao/xinfer/pull/405",
    ),
    Bug(
        "a chunk in the middle of a prompt samples",
        "schedule/grant.py",
        "samples = self.first_position + self.num_tokens >= self.sequence.num_tokens",
        "samples = True",
        f"{MINI}/commit/ef4367fea175d844c80ea0e615ad0e1fa09fbea8",
    ),
    Bug(
        "the token budget is not charged",
        "schedule/plan.py",
        "            budget -= outcome.num_tokens\n",
        "",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/13318",
    ),
    Bug(
        "a sequence grows beyond the longest that the model allows",
        "schedule/admit.py",
        "max_num_tokens=min(num_tokens + request.max_tokens, limits.max_model_len)",
        "max_num_tokens=num_tokens + request.max_tokens",
        f"{VLLM}/issues/16445",
    ),
    Bug(
        "a prompt of the greatest length is admitted",
        "schedule/admit.py",
        "if num_tokens >= max_model_len:",
        "if num_tokens > max_model_len:",
        f"{VLLM}/pull/29633",
    ),
    Bug(
        "below min_tokens the length does not end a sequence",
        "schedule/ending.py",
        "if sequence.num_tokens == sequence.max_num_tokens:",
        "if sequence.num_tokens == sequence.max_num_tokens and num_output_tokens >= request.min_tokens:",
        f"{VLLM}/pull/51299",
    ),
    Bug(
        "an end token counts one token too early for min_tokens",
        "schedule/ending.py",
        "num_output_tokens > request.min_tokens",
        "num_output_tokens >= request.min_tokens",
        f"{VLLM}/pull/46243",
    ),
    Bug(
        "an end token as the last one allowed is said to be length",
        "schedule/ending.py",
        "num_output_tokens > request.min_tokens:",
        "num_output_tokens > request.min_tokens and sequence.num_tokens < sequence.max_num_tokens:",
        f"{VLLM}/pull/27555",
    ),
)

NUM_WORKS = 400
MAX_STATES = 1_500


@frozen
class Found:
    """How a bug was found.

    Attributes:
        number: Works or states until then; None if it was not found.
        seconds: How long it took.
        problem: What was noticed.
    """

    number: int | None
    seconds: float
    problem: str = ""


def by_works(num_works: int = NUM_WORKS) -> Found:
    """Drive random works until one goes wrong."""
    from nanofn.lab.random_work import random_work

    start = perf_counter()
    for seed in range(num_works):
        try:
            random_work(seed)
        except Exception as error:  # noqa: BLE001 any failure is a finding
            return Found(seed + 1, perf_counter() - start, f"{type(error).__name__}: {error}")
    return Found(None, perf_counter() - start)


def by_exploration(max_states: int = MAX_STATES) -> Found:
    """Explore small scopes until a rule breaks: one plan in flight and single-token blocks, then two plans and failures."""
    from nanofn.config import Limits
    from nanofn.lab.explore import Scope, explore
    from nanofn.lab.shadow import EOS
    from nanofn.request import Request, RequestId

    salted = Request(RequestId(0), (1, 1), 2, cache_keys=(("salt", "a"),))
    plain = Request(RequestId(0), (1, 1), 2, min_tokens=1, stop_token_ids=(EOS,))
    scopes = (
        Scope(Limits(1, 4, 2, 4, 5), (plain, salted), max_live=2, max_states=max_states),
        Scope(Limits(2, 3, 2, 3, 4), (plain,), max_live=2, depth=2, has_failures=True, max_states=max_states),
    )
    start, number = perf_counter(), 0
    for scope in scopes:
        found = explore(scope)
        number += found.num_states
        if found.broken is not None:
            return Found(number, perf_counter() - start, found.broken.problem)
    return Found(None, perf_counter() - start)


def table() -> str:
    """Find each bug in both ways; a Markdown table."""
    lines = ["| bug | report | works | s | states | s |", "|---|---|---:|---:|---:|---:|"]
    for bug in BUGS:
        with planted(bug):
            cells = [
                cell
                for found in (by_works(), by_exploration())
                for cell in (found.number or "–", f"{found.seconds:.2f}" if found.number else "–")
            ]
        _, name, _, number = bug.report.removeprefix("https://github.com/").split("/")
        lines.append("| " + " | ".join(map(str, [bug.name, f"[{name} {number[:7]}]({bug.report})", *cells])) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
