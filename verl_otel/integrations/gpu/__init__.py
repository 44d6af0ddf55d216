# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs: the metrics of each device from its driver, the processes that use it, and the memory of the framework's allocator.

There is one module per driver behind a small interface (`device`): NVML, AMD SMI, Ascend. Without a GPU nothing is imported or logged.
"""
