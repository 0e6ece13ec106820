"""An engine without a model: real loop, intake and tracker, and an executor that samples what a script says."""

from collections import Counter, deque

from nanofn.batch.step_output import StepOutput, TokenLogprobs
from nanofn.config import Limits
from nanofn.device.executor import NO_MASKS
from nanofn.llm.engine import Engine
from nanofn.llm.facts import Facts
from nanofn.llm.intake import Intake, read_call
from nanofn.policy import fcfs
from nanofn.text.grammar import Grammars

LIMITS = Limits(block_size=4, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=200)


def logprob_of(prompt, position):
    """What the script reports for a position, told from every other one's."""
    return -float(1000 * prompt[0] + position)


class ScriptedExecutor:
    """Samples `script(prompt, child, number)` as the output token of that number, and counts what it samples."""

    def __init__(self, script, fails_at=frozenset()):
        self.script = script
        self.fails_at = fails_at
        self.num_calls = 0
        self.starts = {}
        self.results = deque()
        self.num_sampled = Counter()

    def _count(self):
        self.num_calls += 1
        if self.num_calls in self.fails_at:
            raise MemoryError(f"call {self.num_calls}")

    def launch(self, step_plan, starts, masks=NO_MASKS):
        self._count()
        self.starts |= {start.row: start for start in starts}
        tokens, logprobs = [], []
        for entry in step_plan.entries:
            if entry.samples:
                start, position = self.starts[entry.row], entry.first_position + entry.num_tokens
                prompt = start.token_ids[: start.num_prompt_tokens]
                tokens.append(self.script(prompt, start.child, position - len(prompt)))
                self.num_sampled[prompt, start.child] += 1
                if start.sampling.logprobs is not None:
                    known = TokenLogprobs(tokens[-1], logprob_of(prompt, position), 1, ())
                    logprobs.append((start.sequence_id, known))
        self.results.append(StepOutput(tuple(tokens), tuple(logprobs)))

    def collect(self):
        self._count()
        return self.results.popleft()

    def forget(self):
        self.results.clear()

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
            encode=tokenizer.encode,
            encode_plain=tokenizer.encode_plain,
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
        assert engine.loop.state.pool.num_free == limits.num_blocks
