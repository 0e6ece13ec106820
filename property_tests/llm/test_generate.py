"""generate() and its relatives: what callers rely on."""

import json

import pytest

import nanofn
from nanofn import LLM, SamplingParams
from nanofn.errors import ChatTemplateError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
STORY = "Once upon a time"


def test_results_come_in_the_order_of_the_prompts(llm):
    """Short ones end first and are still where they belong."""
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (20, 1, 7, 3)]
    outputs = llm.generate([STORY] * 4, params)
    assert [20, 1, 7, 3] == [len(output.outputs[0].token_ids) for output in outputs]
    assert sorted(output.request_id for output in outputs) == [output.request_id for output in outputs]
    for output in outputs:
        assert outputs[0].outputs[0].token_ids[: len(output.outputs[0].token_ids)] == output.outputs[0].token_ids


def test_a_sample_depends_on_its_own_request_alone(llm):
    """Seed, child and position make the noise: neighbours, order and calls do not."""
    params = SamplingParams(temperature=1.0, max_tokens=10, seed=42, ignore_eos=True)
    alone = llm.generate(STORY, params)[0].outputs[0].token_ids
    beside = llm.generate(["The cat", STORY, "A dog"], [GREEDY, params, SamplingParams(max_tokens=9)])
    assert alone == beside[1].outputs[0].token_ids


def test_a_drawn_seed_is_recorded_and_repeats_the_text(llm):
    """No seed given: the output says which one it got."""
    params = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
    first, second = (llm.generate(STORY, params)[0].outputs[0] for _ in range(2))
    assert first.seed != second.seed
    again = llm.generate(STORY, params.replace(seed=first.seed))[0].outputs[0]
    assert first.token_ids == again.token_ids


def test_an_engine_seed_repeats_a_whole_session():
    """Same seed, same calls: same texts."""
    params = SamplingParams(temperature=1.0, max_tokens=6)

    def session():
        with LLM(max_model_len=64, seed=7) as engine:
            return [output.outputs[0].token_ids for output in engine.generate([STORY, "The"], params)]

    assert session() == session()


def test_children_of_one_request_differ_and_share_its_prompt(llm):
    """n samples come in order, each with its own noise."""
    output = llm.generate(STORY, SamplingParams(n=3, temperature=1.0, max_tokens=12, seed=1, ignore_eos=True))[0]
    assert [0, 1, 2] == [each.index for each in output.outputs]
    assert len({each.token_ids for each in output.outputs}) == 3
    with pytest.raises(ValueError, match="3 outputs"):
        output.text  # noqa: B018


def test_max_tokens_ends_with_length_and_eos_with_stop(llm):
    """And the stop token is among the ids, not in the text."""
    output = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=3))[0].outputs[0]
    assert ("length", 3, None) == (output.finish_reason, len(output.token_ids), output.stop_reason)
    second = output.token_ids[1]
    stopped = llm.generate(STORY, SamplingParams(temperature=0.0, stop_token_ids=[second]))[0].outputs[0]
    assert ("stop", second) == (stopped.finish_reason, stopped.stop_reason)
    assert stopped.token_ids == output.token_ids[: output.token_ids.index(second) + 1]
    assert stopped.text == llm.tokenizer.decode(stopped.token_ids[:-1])


def test_the_model_stops_by_itself(llm):
    """The embedded model ends a story by its end-of-sequence token."""
    with LLM() as roomy:
        output = roomy.generate(STORY, SamplingParams(temperature=0.0, max_tokens=400))[0].outputs[0]
    assert output.finish_reason == "stop"
    assert output.stop_reason is None


def test_max_model_len_ends_with_length(llm):
    """A prompt of 127 of 128 tokens gets one token."""
    params = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    for num_prompt in (100, 126, 127):
        output = llm.generate([[20] * num_prompt], params)[0].outputs[0]
        assert (128 - num_prompt, "length") == (min(len(output.token_ids), 28), output.finish_reason)


def test_no_parameters_means_the_checkpoints_own(llm):
    """generation_config.json speaks where the caller does not."""
    assert llm.get_default_sampling_params().max_tokens is not None
    output = llm.generate(STORY)[0].outputs[0]
    assert 0 < len(output.token_ids) <= llm.get_default_sampling_params().max_tokens


def test_stream_gives_the_text_of_generate(llm):
    """Pieces joined are the text; the last one carries the reason."""
    prompts = [STORY, "The cat", "One day"]
    params = SamplingParams(temperature=0.8, max_tokens=30, seed=3)
    whole = llm.generate(prompts, params)
    deltas = list(llm.stream(prompts, params))
    first = min(delta.request_id for delta in deltas)
    for place, output in enumerate(whole):
        mine = [delta for delta in deltas if delta.request_id == first + place]
        assert output.text == "".join(delta.text for delta in mine)
        assert output.outputs[0].token_ids == tuple(token for delta in mine for token in delta.token_ids)
        assert [None] * (len(mine) - 1) + [output.outputs[0].finish_reason] == [each.finish_reason for each in mine]


def test_closing_a_stream_aborts_its_requests(llm):
    """Nothing runs on for a reader that has gone."""
    deltas = llm.stream([STORY, "The cat"], SamplingParams(max_tokens=100, ignore_eos=True))
    next(deltas)
    assert llm.has_unfinished
    deltas.close()
    assert not llm.has_unfinished
    llm.stream(STORY).close()
    assert not llm.has_unfinished


@pytest.mark.parametrize("between", ["generate", "stream", "step"])
def test_a_stream_loses_nothing_to_calls_between_its_pieces(llm, between):
    """Another call's steps finish the stream's request while its reader is elsewhere: every piece still comes."""
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    expected = list(map(pieces_of, llm.stream("The cat", params)))
    deltas = llm.stream("The cat", params)
    found = [pieces_of(next(deltas))]
    if between == "generate":
        llm.generate("The dog", params)
    elif between == "stream":
        assert len(list(llm.stream("The dog", params))) == 5
    else:
        llm.add_request("The dog", params)
        while llm.has_unfinished:
            llm.step()
    assert found + list(map(pieces_of, deltas)) == expected


def pieces_of(delta):
    """What does not depend on the request's number."""
    return delta.text, delta.token_ids, delta.finish_reason


def test_requests_added_by_hand_run_beside_calls(llm):
    """generate() returns its own; step() returns the others."""
    mine = llm.add_request(STORY, SamplingParams(temperature=0.0, max_tokens=3))
    slow = llm.add_request("The cat", SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    called = llm.generate("One day", SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True))
    assert len(called) == 1
    assert called[0].request_id not in (mine, slow)
    finished = {}
    while llm.has_unfinished:
        finished |= {output.request_id: output for output in llm.step()}
    assert {mine, slow} == finished.keys()
    assert len(finished[slow].outputs[0].token_ids) == 40
    assert llm.step() == []


def test_abort_gives_the_text_so_far(llm):
    """Twice is once; unknown ids change nothing."""
    number = llm.add_request(STORY, SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
    for _ in range(5):
        assert llm.step() == []
    llm.abort(number)
    llm.abort(number)
    llm.abort(10**6)
    (output,) = llm.step()
    assert (number, "abort", True) == (output.request_id, output.outputs[0].finish_reason, output.finished)
    assert 1 <= len(output.outputs[0].token_ids) <= 5


def test_abort_ends_all_children_of_a_request(llm):
    """Three outputs in order, each with the text so far, and no block is held."""
    number = llm.add_request(STORY, SamplingParams(n=3, seed=1, max_tokens=100, ignore_eos=True))
    for _ in range(6):
        assert llm.step() == []
    llm.abort(number)
    (output,) = llm.step()
    assert [(index, "abort") for index in range(3)] == [(each.index, each.finish_reason) for each in output.outputs]
    assert all(each.token_ids for each in output.outputs)
    assert llm.state.pool.num_free == llm.state.limits.num_blocks


def test_chat_answers_one_conversation_or_many(llm):
    """The prompt is the rendered conversation; the text is the answer alone."""
    hello = [{"role": "user", "content": "Hello!"}]
    story = [{"role": "user", "content": "Tell me a story."}]
    (single,) = llm.chat(hello, GREEDY)
    several = llm.chat([hello, story], GREEDY)
    assert single.outputs[0].token_ids == several[0].outputs[0].token_ids
    assert several[0].outputs[0].token_ids != several[1].outputs[0].token_ids
    assert "Hello!" in llm.tokenizer.decode(single.prompt_token_ids)
    assert "Hello!" not in single.text or single.text.startswith("Hello")


def test_chat_takes_a_template_of_the_callers(llm):
    """And a broken or missing one is a typed error that shows how to pass one."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (output,) = llm.chat([{"role": "user", "content": STORY}], GREEDY, chat_template=template)
    assert llm.generate(STORY, GREEDY)[0].outputs[0].token_ids == output.outputs[0].token_ids
    with pytest.raises(ChatTemplateError, match="does not take"):
        llm.chat([{"role": "user", "content": "a"}], chat_template="{{ raise_exception('no') }}")
    with pytest.raises(ChatTemplateError, match="role"):
        llm.chat([["not a message"]])


def test_facts_reach_the_policy(llm):
    """priority, client, deadline and hint arrive as the policy's view shows them."""
    seen = {}

    class Watching:
        init = None

        def decide(self, policy_state, view):
            for each in view.waiting:
                seen[each.request_id] = (each.priority, each.client, each.deadline_us, each.hint, each.arrival_us)
            return nanofn.policy.fcfs.decide(nanofn.policy.fcfs.init, view)[0] and None, nanofn.policy.fcfs.decide(
                nanofn.policy.fcfs.init, view
            )[1]

    with LLM(max_model_len=64, policy=Watching()) as engine:
        engine.generate(["a", "b"], GREEDY, priority=[1, 2], client="me", deadline=2.0, hint=[3, None])
    (first, second) = (seen[number] for number in sorted(seen))
    assert (1, "me", 3) == (first[0], first[1], first[3])
    assert (2, "me", None) == (second[0], second[1], second[3])
    assert first[2] - first[4] == 2_000_000


def test_results_are_frozen_and_become_json(llm):
    """A result never changes; to_dict() is plain data; indexing names the attribute."""
    output = llm.generate(STORY, GREEDY)[0]
    with pytest.raises(AttributeError):
        output.finished = False
    assert json.loads(json.dumps(output.to_dict()))["outputs"][0]["text"] == output.text
    with pytest.raises(TypeError, match=r"write output\.text"):
        output["text"]
    with pytest.raises(TypeError, match="it has request_id, prompt, prompt_token_ids, outputs, finished, "):
        output[0]


def test_metrics_are_in_order(llm):
    """Arrival, first token and end follow each other; a repeated prompt finds its prefix in the cache."""
    prompt = [30 + place for place in range(100)]
    first, again = (llm.generate([prompt], GREEDY)[0] for _ in range(2))
    for output in (first, again):
        metrics = output.metrics
        assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
        assert metrics.num_preemptions == 0
    assert (0, 64) == (first.num_cached_tokens, again.num_cached_tokens)


def test_the_summary_counts_what_was_computed():
    """Tokens, steps and batch sizes add up, and read as a sentence."""
    with LLM(max_model_len=64, depth=1) as engine:
        engine.generate([[30] * 10, [40] * 20], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
        summary = engine.summary()
    assert (30, 8, 5, 2) == (
        summary.num_prefill_tokens,
        summary.num_decode_tokens,
        summary.num_steps,
        summary.max_batch_size,
    )
    assert "30 tokens prefilled" in str(summary)


def test_the_module_call_keeps_its_engine_until_told_otherwise():
    """Same options, same engine; other options close it; close() is safe to call twice."""
    from nanofn import api

    first = nanofn.generate(STORY, GREEDY, max_model_len=64)
    kept = api._kept["llm"]
    assert first[0].text == nanofn.generate(STORY, GREEDY, max_model_len=64)[0].text
    assert api._kept["llm"] is kept
    nanofn.generate(STORY, GREEDY, max_model_len=96)
    assert api._kept["llm"] is not kept
    nanofn.close()
    nanofn.close()
    assert not api._kept
