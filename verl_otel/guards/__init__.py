# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""When should a training stop, or a checkpoint be kept? Conditions on the scalars of each step; off by default.

``conditions`` → pure conditions · ``decisions`` → all conditions of a run, and callbacks of users.
The integration of verl asks for a decision at each ``Tracking.log`` and carries out what it asks for; ``verl-otel guards`` replays a finished run.
"""
