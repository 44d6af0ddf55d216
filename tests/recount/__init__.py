# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""An independent count of what trainings did, compared with every number that the product gives."""
