"""An engine without a model: real loop, intake and tracker, and an executor that samples what a script says."""

from collections import Counter, deque

import numpy as np

from nanofn.batch.logprob_record import record_type
from nanofn.batch.masks import NO_MASKS
from nanofn.batch.step_output import StepOutput
from nanofn.config import Limits
from nanofn.llm.engine import Engine
from nanofn.llm.facts import Facts
from nanofn.llm.intake import Intake, read_call
from nanofn.policy import fcfs
from nanofn.text.grammar import Grammars

LIMITS = Limits(block_size=4, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=200)


def logprob_of(prompt, position):
    """What the script reports for a position, told from every other one's."""
    return -float(1000 * prompt[0] + position)


def allowed_ids(mask):
    """The ids that a mask allows."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


class ScriptedExecutor:
    """Samples `script(prompt, child, number)` as the output token of that number, and counts what it samples.

    Under a mask it samples one of the allowed tokens, by that number.
    """

    def __init__(self, script, fails_at=frozenset()):
        self.script = script
        self.fails_at = fails_at
        self.num_calls = self.num_launches = 0
        self.awaits_masks = None
        self.starts = {}
        self.results = deque()
        self.num_sampled = Counter()

    def _count(self):
        self.num_calls += 1
        if self.num_calls in self.fails_at:
            raise MemoryError(f"call {self.num_calls}")

    def launch(self, step_plan, starts, *, awaits_masks=False):
        self._count()
        assert self.awaits_masks is None
        self.num_launches += 1
        self.starts |= {start.row: start for start in starts}
        if awaits_masks:
            self.awaits_masks = step_plan
        else:
            self._sample(step_plan, NO_MASKS)

    def sample(self, masks):
        self._count()
        assert not self.results, "masks depend on what is not collected"
        step_plan, self.awaits_masks = self.awaits_masks, None
        self._sample(step_plan, masks)

    def _sample(self, step_plan, masks):
        tokens, logprobs, allowed_by_row = [], {}, dict(zip(masks.rows, masks.words, strict=True))
        for entry in step_plan.entries:
            if entry.samples:
                start, position = self.starts[entry.row], entry.first_position + entry.num_tokens
                prompt = start.token_ids[: start.num_prompt_tokens]
                token_id = self.script(prompt, start.child, position - len(prompt))
                if entry.row in allowed_by_row:
                    allowed = allowed_ids(allowed_by_row[entry.row])
                    token_id = allowed[token_id % len(allowed)]
                tokens.append(token_id)
                self.num_sampled[prompt, start.child] += 1
                if start.sampling.logprobs is not None:
                    known = np.array((1, [(token_id, logprob_of(prompt, position))]), dtype=record_type(0))
                    logprobs[start.sequence_id] = known.tobytes()
        self.results.append(StepOutput(tuple(tokens), logprobs))

    def collect(self):
        self._count()
        return self.results.popleft()

    def forget(self):
        self.results.clear()
        self.awaits_masks = None

    def is_alive(self):
        return True

    def close(self):
        pass


class Run:
    """A call run to its end.

    Attributes:
        outputs: One result per prompt.
        deltas: Every piece, if it streamed.
        num_sampled: (prompt, child) to the number of tokens sampled for it.
        num_calls: How often the executor was called.
        num_launches: How often to launch a plan.
    """

    def __init__(
        self,
        tokenizer,
        script,
        prompts,
        params,
        *,
        limits=LIMITS,
        depth=2,
        streams=False,
        eos=(),
        policy=fcfs,
        fails_at=frozenset(),
    ):
        executor = ScriptedExecutor(script, fails_at)
        engine = Engine(limits, executor, policy, tokenizer, depth=depth)
        intake = Intake(
            tokenizer=tokenizer,
            compile_grammar=Grammars(tokenizer, tokenizer.vocab_size, eos).compile,
            limits=limits,
            vocab_size=tokenizer.vocab_size,
            eos_token_ids=tuple(eos),
            draw_seed=lambda: 0,
        )
        facts = [Facts()] * len(prompts)
        submissions = read_call(intake, prompts, params, facts, first_request_id=0, now_us=0, streams=streams)
        self.deltas = []
        with engine.owning(submissions, [None] * len(prompts)) as ids:
            while engine.loop.has_unfinished:
                engine.step_patiently()
                self.deltas += engine.take_deltas(ids)
            results = engine.take_finished(ids)
        self.outputs = [results[request_id] for request_id in sorted(results)]
        self.num_sampled, self.num_calls = executor.num_sampled, executor.num_calls
        self.num_launches = executor.num_launches
        assert engine.loop.state.pool.num_free == limits.num_blocks
