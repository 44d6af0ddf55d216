# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The test bed: real verl on the CPU.

`cpu_train` and `cpu_assets` run where a training is started, and are imported by their full names. The other modules run in the processes
of verl, which find them by bare names (``VERL_USE_EXTERNAL_MODULES=cpu_bed``) in this folder: `cpu_train.make_environment` puts it into
PYTHONPATH.
"""
