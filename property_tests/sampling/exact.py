"""What a row's next token is distributed like, in plain Python and float64: the definitions, written out."""

import math
from collections import Counter


def restricted(x, is_left):
    """Logits of which some ids are left; all of them, where none with a logit above -inf would be."""
    left = [logit if is_left(place) else -math.inf for place, logit in enumerate(x)]
    return left if max(left) > -math.inf else x


def adjusted(logits, sampling, prompt, output, mask=None):
    """A row's logits after a grammar's mask and all that `RowSampling` says, id by id, in the documented order."""
    x = [float(logit) if mask is None or mask[place] else -math.inf for place, logit in enumerate(logits)]
    if sampling.allowed_token_ids is not None:
        x = restricted(x, lambda place: place in sampling.allowed_token_ids)
    banned = [
        word[-1] for word in sampling.bad_words if tuple(output[len(output) - len(word) + 1 :]) == tuple(word[:-1])
    ]
    x = restricted(x, lambda place: place not in banned)
    if len(output) < sampling.min_tokens:
        x = restricted(x, lambda place: place not in sampling.end_token_ids)
    for token_id, amount in sampling.logit_bias:
        x[token_id] += amount
    counts = Counter(output)
    for token_id in set(prompt) | set(output):
        penalty = sampling.repetition_penalty
        x[token_id] = x[token_id] / penalty if x[token_id] > 0 else x[token_id] * penalty
    for token_id, count in counts.items():
        x[token_id] -= count * sampling.frequency_penalty + sampling.presence_penalty
    return x


def softmax(x):
    """Probabilities of logits."""
    largest = max(x)
    weights = [math.exp(logit - largest) for logit in x]
    total = sum(weights)
    return [weight / total for weight in weights]


def filtered(logits, sampling):
    """Probabilities after temperature, top-k, top-p and min-p; lower ids come first on ties."""
    if sampling.temperature < 1e-5:
        best = max(range(len(logits)), key=lambda place: (logits[place], -place))
        return [float(place == best) for place in range(len(logits))]
    tempered = [logit / sampling.temperature for logit in logits]
    order = sorted(range(len(tempered)), key=lambda place: (-tempered[place], place))
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    probabilities = softmax([tempered[place] for place in order])
    if sampling.top_p < 1:
        before = [math.fsum(probabilities[:place]) for place in range(len(order))]
        order = [token_id for token_id, mass in zip(order, before, strict=True) if mass < sampling.top_p]
    least = math.log(sampling.min_p) + tempered[order[0]] if sampling.min_p > 0 else -math.inf
    kept = {token_id for token_id in order if tempered[token_id] >= least}
    return softmax([logit if place in kept else -math.inf for place, logit in enumerate(tempered)])


def distribution(logits, sampling, prompt, output):
    """Probabilities of the next token."""
    return filtered(adjusted(logits, sampling, prompt, output), sampling)
