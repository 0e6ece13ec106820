"""The yardstick of `bench_schedule.py`: a scheduler with the policy of `fcfs`, mutable and written to be fast.

Lists, dictionaries and counters changed in place, policy and block manager in one loop, as engines usually have it. It
makes the same plans as the pure core does with `fcfs` (a test compares them), at depth 1 and for one child a request.
What it leaves out is what mutation makes hard: no plan can fail, be replayed, or be in flight beside another.
"""

from array import array
from collections import OrderedDict, deque
from hashlib import blake2b

KEY = b"nanofn"
ROOT = blake2b(b"()", digest_size=16, key=KEY).digest()


class Sequence:
    """One request, changed in place."""

    __slots__ = ("chain", "computed", "end", "length", "num_published", "number", "row", "stops", "table", "tokens")

    def __init__(self, number, prompt, max_tokens, max_model_len, stops):
        self.number, self.stops = number, stops
        self.tokens = array("I", prompt)
        self.length = len(prompt)
        self.end = min(self.length + max_tokens, max_model_len)
        self.computed = self.num_published = 0
        self.table, self.chain, self.row = [], [], None


class MutableScheduler:
    """Continuous batching with chunked prefill, prefix caching and preemption of the last; decodes come first."""

    def __init__(self, limits):
        self.block_size, self.num_blocks = limits.block_size, limits.num_blocks
        self.max_num_seqs, self.budget, self.max_model_len = (
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            limits.max_model_len,
        )
        self.frontier, self.returned, self.cached = 0, [], OrderedDict()
        self.references = [0] * limits.num_blocks
        self.digests = [None] * limits.num_blocks
        self.holders = {}
        self.rows = list(range(limits.max_num_seqs))[::-1]
        self.waiting, self.running = deque(), []
        self.num_preemptions = 0

    def add(self, number, prompt, max_tokens, stops=()):
        """Queue a request."""
        sequence = Sequence(number, prompt, max_tokens, self.max_model_len, stops)
        self.extend_chain(sequence)
        self.waiting.append(sequence)

    def extend_chain(self, sequence):
        """Digest the full blocks that have none yet."""
        size, chain, packed = self.block_size, sequence.chain, sequence.tokens
        parent = chain[-1] if chain else ROOT
        for start in range(len(chain) * size, sequence.length - size + 1, size):
            parent = blake2b(parent + packed[start : start + size].tobytes(), digest_size=16, key=KEY).digest()
            chain.append(parent)

    @property
    def num_free(self):
        """Blocks that can be allocated."""
        return self.num_blocks - self.frontier + len(self.returned) + len(self.cached)

    def allocate(self, count):
        """Take free blocks, first those that hold nothing."""
        blocks = []
        for _ in range(count):
            if self.returned:
                block = self.returned.pop()
            elif self.frontier < self.num_blocks:
                block = self.frontier
                self.frontier += 1
            else:
                block, _ = self.cached.popitem(last=False)
                self.withdraw(block)
            self.references[block] = 1
            blocks.append(block)
        return blocks

    def withdraw(self, block):
        """Drop a block from the prefix index."""
        digest = self.digests[block]
        self.digests[block] = None
        holders = self.holders[digest]
        holders.remove(block)
        if not holders:
            del self.holders[digest]

    def release(self, table):
        """Drop a reference of each block, the last one first."""
        references, digests = self.references, self.digests
        returned = []
        for block in reversed(table):
            references[block] -= 1
            if not references[block]:
                if digests[block] is None:
                    returned.append(block)
                else:
                    self.cached[block] = None
        self.returned += reversed(returned)

    def preempt(self, sequence):
        """Take a running sequence's blocks; it goes back to its place by arrival."""
        self.release(sequence.table)
        self.rows.append(sequence.row)
        sequence.table, sequence.row, sequence.computed, sequence.num_published = [], None, 0, 0
        self.num_preemptions += 1
        place = 0
        for other in self.waiting:
            if other.number > sequence.number:
                break
            place += 1
        self.waiting.insert(place, sequence)

    def schedule(self):
        """Choose and allocate; returns (sequence, first position, number of tokens) and the new blocks."""
        size, budget, running, num_preempted = self.block_size, self.budget, self.running, self.num_preemptions
        entries, new_blocks, prefills = [], [], []
        # The watermark: a free block for each running sequence must stay when another one starts.
        spare = self.num_free - len(running)
        place = 0
        while place < len(running):
            sequence = running[place]
            position = sequence.computed
            if sequence.length - position > 1:
                prefills.append(sequence)
            elif budget:
                if position % size == 0:
                    while not self.num_free and len(running) > place + 1:
                        self.preempt(running.pop())
                    if not self.num_free:
                        place += 1
                        continue
                    block = self.allocate(1)[0]
                    new_blocks.append((sequence.row, len(sequence.table), block))
                    sequence.table.append(block)
                entries.append((sequence, position, 1))
                sequence.computed = position + 1
                budget -= 1
            place += 1
        if prefills or self.waiting:
            if self.num_preemptions > num_preempted:
                spare = -self.num_blocks
            self.schedule_prefills(
                [each for each in prefills if each.row is not None], budget, spare, entries, new_blocks
            )
        return entries, new_blocks

    def schedule_prefills(self, prefills, budget, spare, entries, new_blocks):
        """Go on with started prompts, then start waiting ones while tokens, rows and spare blocks last."""
        size, running = self.block_size, self.running
        for sequence in prefills:
            count = min(sequence.length - sequence.computed, budget)
            spare -= -(-sequence.length // size) - len(sequence.table)
            if count:
                num_new = -(-(sequence.computed + count) // size) - len(sequence.table)
                if num_new > self.num_free:
                    continue
                self.extend(sequence, self.allocate(num_new), new_blocks)
                entries.append((sequence, sequence.computed, count))
                sequence.computed += count
                budget -= count
        while self.waiting and budget and len(running) < self.max_num_seqs:
            sequence = self.waiting[0]
            hits = []
            for digest in sequence.chain[: (sequence.length - 1) // size]:
                holders = self.holders.get(digest)
                if holders is None:
                    break
                hits.append(holders[0])
            start = len(hits) * size
            num_free_hits = sum(not self.references[block] for block in hits)
            spare -= -(-sequence.length // size) - len(hits) + num_free_hits + 1
            if spare < 0 and running:
                break
            self.waiting.popleft()
            for block in hits:
                if not self.references[block]:
                    del self.cached[block]
                self.references[block] += 1
            count = min(sequence.length - start, budget)
            num_new = -(-(start + count) // size) - len(hits)
            sequence.row = self.rows.pop()
            self.extend(sequence, hits + self.allocate(num_new), new_blocks)
            sequence.computed = start + count
            sequence.num_published = len(hits)
            entries.append((sequence, start, count))
            running.append(sequence)
            budget -= count

    def extend(self, sequence, blocks, new_blocks):
        """Lengthen a block table."""
        table = sequence.table
        new_blocks += [(sequence.row, len(table) + place, block) for place, block in enumerate(blocks)]
        table += blocks

    def commit(self, entries, token_ids):
        """Append sampled tokens, publish written blocks, end what is done; returns the numbers of those that ended."""
        size, tokens, ended = self.block_size, iter(token_ids), []
        for sequence, first_position, count in entries:
            position = first_position + count
            if position == sequence.length:
                token_id = next(tokens)
                sequence.tokens.append(token_id)
                sequence.length = length = position + 1
                if length % size == 0:
                    self.extend_chain(sequence)
                if length == sequence.end or token_id in sequence.stops:
                    ended.append(sequence)
            if position // size > sequence.num_published:
                self.publish(sequence, position // size)
        if ended:
            gone = {sequence.number for sequence in ended}
            for sequence in ended:
                self.release(sequence.table)
                self.rows.append(sequence.row)
            self.running = [sequence for sequence in self.running if sequence.number not in gone]
        return [sequence.number for sequence in ended]

    def publish(self, sequence, written):
        """Offer written blocks for reuse."""
        for place in range(sequence.num_published, written):
            block = sequence.table[place]
            if self.digests[block] is None:
                self.digests[block] = digest = sequence.chain[place]
                self.holders.setdefault(digest, []).append(block)
        sequence.num_published = written
