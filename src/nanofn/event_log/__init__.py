"""The event log: a run as a file, and the fold that repeats it. The log is the run: no policy and no model is needed."""

from nanofn.event_log.read import read_log as read_log
from nanofn.event_log.replay import Replay as Replay, replay as replay
from nanofn.event_log.write import LogWriter as LogWriter, write_log as write_log
