# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The instrumentation API: everything that an integration may use of recording, session, system, watchdog and analysis.

Besides this module an integration imports `verl_otel.semconv`, `verl_otel.model`, `verl_otel.prometheus_names`, `verl_otel.errors`,
`verl_otel._internal`, the shared modules of `verl_otel.integrations` and the modules of its own package; import-linter checks it. The
names are bound when an integration is imported: a call at run time costs what it costs at its definition.
"""

from __future__ import annotations

from verl_otel.analysis.gpu.live_estimate import Pool as GpuPool
from verl_otel.analysis.gpu.live_estimate import Rollout
from verl_otel.analysis.gpu.live_estimate import Spell as NamedInterval
from verl_otel.analysis.gpu.live_estimate import Window as StepWindow
from verl_otel.analysis.gpu.live_estimate import find_tail as find_tail_share
from verl_otel.analysis.gpu.live_estimate import spend as account_gpu_time
from verl_otel.analysis.kinds import CAUSES
from verl_otel.config import Config, is_enabled
from verl_otel.config import load as load_settings
from verl_otel.guards.conditions import Finding
from verl_otel.guards.engine import Decision, Guards, make_guards
from verl_otel.guards.progress import LearningProgress
from verl_otel.health.profiles import load as load_profile
from verl_otel.health.profiles import to_manifest as describe_profile
from verl_otel.health.recent_past import RecentChanges
from verl_otel.recording import run_log
from verl_otel.recording.attribute_values import OTHER_NAME, coerce_attribute, to_name, to_number, to_text
from verl_otel.recording.bound_counters import BoundCounter
from verl_otel.recording.call_attributes import extract_batch, extract_llm, extract_reward, extract_trajectory
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.collection import Measurement, Observation, add_points, observe
from verl_otel.recording.context import bind_context
from verl_otel.recording.context import context_access as otel_context
from verl_otel.recording.instruments import Counter, Gauge, Histogram, valid_bounds
from verl_otel.recording.phase_names import phase_site
from verl_otel.recording.phase_names import was_used as is_used_phase
from verl_otel.recording.series_registry import INSTRUMENTS, MAX_SCALARS, MAX_SERIES, counter, gauge, histogram
from verl_otel.recording.span import Span, clock, local_span
from verl_otel.recording.span import current as current_span
from verl_otel.recording.state import RECORDER, wall_offset_ns
from verl_otel.recording.state import keep as keep_span
from verl_otel.recording.step_statistics import describe_tail, find_spread, measure_waits, sum_scores
from verl_otel.recording.wrapper_source import FILE_PREFIX as WRAPPER_FILE
from verl_otel.recording.wrapping import HOOKED, passive_code
from verl_otel.recording.wrapping import marked as find_callsite
from verl_otel.resource import add_describer, make_run_id
from verl_otel.resource import build as build_resource
from verl_otel.session import current as current_session
from verl_otel.session import describe as describe_resource
from verl_otel.session import flush, record_run, wake
from verl_otel.session.children import is_child as is_multiprocessing_child
from verl_otel.session.live_verdicts import LiveVerdicts
from verl_otel.session.prometheus_file import add as merge_prometheus_job
from verl_otel.session.prometheus_targets import FOLDER as TARGETS_FOLDER
from verl_otel.session.prometheus_targets import Entries as TargetEntries
from verl_otel.session.prometheus_targets import Entry as TargetEntry
from verl_otel.session.prometheus_targets import add_entries as add_targets
from verl_otel.session.prometheus_targets import add_publisher as add_target_publisher
from verl_otel.session.prometheus_targets import make_entry as make_target
from verl_otel.session.prometheus_targets import read_own as read_targets
from verl_otel.session.prometheus_targets import remove_publisher as remove_target_publisher
from verl_otel.session.target_entries import sanitize as clean_target
from verl_otel.system.collectors import Collector, DeltaCounter, NodeScope
from verl_otel.system.collectors import add as add_collector
from verl_otel.system.collectors import remove as remove_collector
from verl_otel.watchdog.cluster_backend import DeathInfo
from verl_otel.watchdog.cluster_backend import Note as ClusterNote
from verl_otel.watchdog.cluster_backend import set_backend as set_cluster_backend

__all__ = [  # noqa: RUF022 - in the order of their subjects
    # The switch
    "is_enabled",  # whether the environment switches verl-otel on
    "RECORDER",  # recording in this process: `on`, and `capture_content`; read at each call, never copied
    # Spans
    "CallSite",  # what is recorded at one place in a host: verb, name, fixed attributes
    "Span",  # one piece of work: `__enter__`, `close`, `discard`, `set_attribute`, `link_record`
    "clock",  # the monotonic clock of spans, in seconds
    "wall_offset_ns",  # nanoseconds from that clock to Unix time
    "current_span",  # the innermost open span of verl-otel, or None
    "local_span",  # the span of verl-otel in a context, or None
    "keep_span",  # hand over a span that was never entered, with its own start and stop
    "phase_site",  # the `CallSite` of a phase, by its key
    "is_used_phase",  # whether a phase of this key was opened in this process
    "find_callsite",  # the `CallSite` of a function that a user has decorated, or None
    "passive_code",  # the code of a decorated function that records nothing, or None
    "WRAPPER_FILE",  # begin of the file name in the code of every decorated function
    "HOOKED",  # attribute of a hook's wrapper: its state, which a decorator sets to superseded
    "otel_context",  # OpenTelemetry's current context: `get`, `set`, `reset`, `span_of`
    "bind_context",  # a function that runs in OpenTelemetry's context of now, in whatever thread
    # Values and attributes
    "OTHER_NAME",  # the value for a name outside of a known set
    "coerce_attribute",  # any value as an attribute value; never raises
    "to_name",  # any value as a name of bounded length
    "to_number",  # a number, or None; never waits for a device
    "to_text",  # any value as text of bounded length
    "extract_batch",  # attributes of a worker call from its batch
    "extract_llm",  # attributes of an LLM call from its arguments and result
    "extract_reward",  # attributes of a reward from its result
    "extract_trajectory",  # attributes of a trajectory from its output
    # Metrics of the catalogue, by their name
    "INSTRUMENTS",  # all of them
    "counter",  # a series of a counter: `record`
    "gauge",  # a series of a gauge: `set`
    "histogram",  # a series of a histogram: `record`
    "Observation",  # labels and a number
    "observe",  # call back at each collection, for one metric
    "Measurement",  # metric, labels and a number
    "add_points",  # hand over finished points
    "find_spread",  # mean and standard deviation of scores
    "sum_scores",  # the scores of the trajectories of a step
    "measure_waits",  # how long the trajectories of a step waited for the model and for tools
    "describe_tail",  # the durations of the trajectories of a step, and the slowest one
    "MAX_SCALARS",  # gauges made from scalars, of one process
    "MAX_SERIES",  # series of one metric
    # A user's own metrics
    "Counter",
    "BoundCounter",  # a counter with its labels
    "Gauge",
    "Histogram",
    "valid_bounds",  # bounds of a histogram, checked; the default ones for None
    # What is read at each collection, on the thread that collects
    "Collector",  # the protocol
    "NodeScope",  # where the processes of a run on one node find each other
    "DeltaCounter",  # a foreign counter, monotonic across its resets
    "add_collector",
    "remove_collector",
    # The session of this process
    "Config",  # its settings
    "load_settings",  # the settings of the environment and of keywords, before there is a session
    "current_session",  # it, or None
    "make_run_id",  # an id for a run that starts now
    "add_describer",  # have resource attributes asked for when the resource is built
    "build_resource",  # the resource of this process
    "is_multiprocessing_child",  # whether `multiprocessing` has started this process
    "describe_resource",  # add resource attributes that became known later
    "record_run",  # add facts to the manifest of the run
    "flush",  # send what was recorded, and wait for a number of seconds
    "wake",  # send what was recorded, without waiting
    # Prometheus targets of the run
    "TARGETS_FOLDER",  # their folder in the run's folder
    "TargetEntries",  # several of them
    "TargetEntry",  # one entry of `file_sd`: targets and labels
    "add_target_publisher",
    "remove_target_publisher",
    "add_targets",  # add entries to the run's targets
    "make_target",  # the entry of one address
    "read_targets",  # the entries that this process has added
    "merge_prometheus_job",  # add a job that discovers the run's targets to a user's prometheus.yml
    "clean_target",  # an entry from an untrusted source, or None
    # The watchdog's view of the cluster
    "ClusterNote",  # findings of one node
    "DeathInfo",  # why the process of an actor ended
    "set_cluster_backend",
    # The run log
    "run_log",  # its records: `begin_run`, `add_step`, `end_step`, `is_enabled`
    # Guards
    "Guards",  # the guards of a run: `observe` the scalars of a step
    "Decision",  # what they ask for
    "Finding",  # the condition that stops a training
    "make_guards",
    "LearningProgress",  # steps since the best mean, and the trend
    "LiveVerdicts",  # what held a step, when it ends
    "RecentChanges",  # the last three steps against the twenty before
    "load_profile",  # thresholds of a profile
    "describe_profile",  # a profile as facts for the manifest of the run
    # The account of GPU time
    "CAUSES",  # causes of GPU time, and the state that each belongs to
    "GpuPool",  # the GPUs of a run
    "Rollout",  # one trajectory
    "NamedInterval",  # name, start and end
    "StepWindow",  # one step
    "find_tail_share",  # share of a step that waited for its slowest trajectories
    "account_gpu_time",  # GPU seconds of a step, by cause
]
