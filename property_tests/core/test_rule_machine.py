"""Anything in any order, with shrinking: the engine under the lab's rule machine."""

from hypothesis import settings

from nanofn.lab.machine import EngineMachine, machine_for
from nanofn.policy import fair, patience, prefill_first

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(stateful_step_count=40)

TestFair = machine_for(fair).TestCase
TestFair.settings = settings(stateful_step_count=30, max_examples=30)

TestPatience = machine_for(patience(prefill_first, 3)).TestCase
TestPatience.settings = settings(stateful_step_count=30, max_examples=30)
