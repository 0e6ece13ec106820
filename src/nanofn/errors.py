"""The exception hierarchy: who is at fault decides the branch.

Every message names the value, the limit and what to do. The pure core raises none of these for ordinary
outcomes: those are effects, and the shell turns them into errors.
"""


class NanofnError(Exception):
    """Base of every error that nanofn raises on purpose. Never raised itself."""


class ConfigError(NanofnError, ValueError):
    """An option is wrong or does not fit, known before any request."""


class UnsupportedModelError(ConfigError):
    """The checkpoint's architecture, or a feature of it, is not covered."""


class CheckpointError(ConfigError):
    """A checkpoint's files are missing, damaged, or do not match its config."""


class HubError(ConfigError):
    """Base of the errors of names on a model hub. Never raised itself."""


class GatedModelError(HubError):
    """The model exists, and the hub gives it only to those it knows and has let in."""


class MissingModelError(HubError):
    """The hub has no model, or no revision of it, by this name."""


class HubUnreachableError(HubError):
    """The hub does not answer or is not to be asked, and the model is not in the cache."""


class CheckpointWarning(UserWarning):
    """A checkpoint was loaded, and something in it is wrong all the same."""


class RequestError(NanofnError, ValueError):
    """A call's prompts or parameters are wrong. Nothing was queued.

    Attributes:
        problems: (index, reason) for every bad prompt of the call, in order.
    """

    def __init__(self, problems: "tuple[tuple[int, str], ...]") -> None:
        self.problems = problems
        super().__init__("nothing was queued; " + "; ".join(f"prompt {index}: {reason}" for index, reason in problems))


class InvariantError(NanofnError):
    """A bug in nanofn: the state broke one of its own rules.

    Attributes:
        findings: What `violations` reported.
    """

    def __init__(self, findings: "tuple[object, ...]") -> None:
        self.findings = findings
        super().__init__("nanofn's state is inconsistent, please report this: " + "; ".join(map(str, findings)))


class PlanOrderError(NanofnError):
    """A result does not belong to the oldest plan in flight, or has the wrong number of tokens: a bug of the caller.

    Attributes:
        plan_id: The plan the result was given for.
        expected: What was due.
    """

    def __init__(self, plan_id: int, expected: str) -> None:
        self.plan_id = plan_id
        self.expected = expected
        super().__init__(
            f"a result for plan {plan_id} came, but due is {expected}; commit plans in order, oldest first"
        )


class StepError(NanofnError, RuntimeError):
    """A step failed. No request is lost: those it names will be computed anew, so calling again goes on.

    Attributes:
        request_ids: The requests of the failed step, all still live.
    """

    def __init__(self, request_ids: "tuple[int, ...]", cause: BaseException) -> None:
        self.request_ids = request_ids
        super().__init__(
            f"a step of requests {list(request_ids)} failed ({type(cause).__name__}: {cause}); they are still queued, "
            "call step() or generate() again to go on, or abort them"
        )


class LogitsError(NanofnError, RuntimeError):
    """The model computed logits that are not numbers, so there is no token to sample."""


class EngineDeadError(NanofnError, RuntimeError):
    """The device is lost: its context is gone, and nothing can run on it any more. Make a new engine, or a new process.

    Attributes:
        state: The engine's last state, an `EngineState`: which requests live, and how far they are.
        outputs: Results that nobody has taken yet; those of live requests with finish reason "error" and the text so far.
        cause: What the device said.
    """

    def __init__(self, state: object, outputs: "tuple[object, ...]", cause: BaseException) -> None:
        self.state = state
        self.outputs = outputs
        self.cause = cause
        super().__init__(
            f"the device is lost ({type(cause).__name__}: {cause}); {len(outputs)} results so far are in this error's "
            "attribute `outputs`; close this LLM and make a new one, on a GPU in a new process"
        )

    def with_outputs(self, outputs: "tuple[object, ...]") -> "EngineDeadError":
        """Tell the same with other results."""
        return EngineDeadError(self.state, outputs, self.cause)


class GrammarError(NanofnError, ValueError):
    """A form that an output should have cannot be carried out."""


class LogError(NanofnError, ValueError):
    """An event log cannot be read.

    Attributes:
        path: The file.
        line: The line that is wrong, from 1; 0 where it is the whole file.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}{f', line {line}' if line else ''}: {problem}")


class PolicyFileError(NanofnError, ValueError):
    """A file that should hold a scheduling policy holds none, or several, or does not run."""


class UsageError(NanofnError, RuntimeError):
    """A call that is out of place: on a closed engine, or from another thread."""


class ParameterError(NanofnError, ValueError):
    """A sampling parameter is out of its range.

    Attributes:
        field: Its name.
        value: What was given.
        expected: What it may be.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field} is {value!r}; it must be {expected}")


class ChatTemplateError(NanofnError, ValueError):
    """A conversation cannot be rendered: there is no chat template, or it does not take these messages."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in `generate`: a KeyboardInterrupt, so that programs end by it as by any other. The engine is ready for the next call.

    Attributes:
        outputs: One result per prompt: finished ones whole, the others with finish reason "abort" and the text so far.
    """

    def __init__(self, outputs: "tuple[object, ...]") -> None:
        self.outputs = outputs
        super().__init__(f"interrupted; {len(outputs)} results so far are in its attribute `outputs`")
