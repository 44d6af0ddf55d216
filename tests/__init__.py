# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Tests. Helpers are imported by their full names: ``from tests.end_to_end import planted``.

Programs with such imports run from the top of the project: ``python -m tests.end_to_end.planted``. verl installs a package ``tests`` into
site-packages; the top of the project has to stand before it in ``sys.path``.

Three folders go into PYTHONPATH, because other software imports their modules by bare names: ``tests/verl_cpu``,
``tests/fakes/engines`` and ``tests/end_to_end/obstacles``.
"""
