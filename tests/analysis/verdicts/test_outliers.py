# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What stands out from the others does so whichever way it is computed."""

from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis.verdicts import stragglers as outliers


@settings(deadline=None, database=None, max_examples=200)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.integers(0, 20))
def test_each_value_is_compared_with_the_median_of_the_others(values, lead):
    """The one sorted list of all ranks says the same as a list of the others for each of them."""
    field = outliers.RankValues(values)
    for index, own in enumerate(values):
        others = values[:index] + values[index + 1 :]
        usual = median(others)
        spread = 1.4826 * median(abs(each - usual) for each in others)
        is_clear = own > usual and own - usual >= lead and own - usual > outliers.OUTLIER * spread
        assert field.median_without(own) == usual
        assert field.excess(own, lead) == (own - usual if is_clear else 0.0)
