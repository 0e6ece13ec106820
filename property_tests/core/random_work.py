"""Random whole runs: those of the policy lab, under the name that the tests of this folder import."""

from nanofn.lab.random_work import (
    random_decision as random_decision,
    random_event as random_event,
    random_limits as random_limits,
    random_request as random_request,
    random_work as random_work,
)
