# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How long a trainer waits for the next batch; the loader itself works as before."""

import pytest

from verl_otel.integrations import patch
from verl_otel.integrations.verl import data_loading

SOURCE = '''
class _StatefulBaseDataLoaderIter:
    """As torchdata 0.11."""

    def __init__(self, items):
        self.items = list(items)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


class StatefulDataLoader:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return _StatefulBaseDataLoaderIter(self.items)
'''


@pytest.fixture
def loader(loaded):
    """The class of a host whose hooks are installed."""
    module = loaded(SOURCE)
    patch.register([hook._replace(module=module.__name__) for hook in data_loading.HOOKS])
    assert set(patch.status.values()) == {"installed"}
    return module.StatefulDataLoader


def test_each_batch_has_a_span(recorded, loader):
    """One for the iterator, one for each batch, none for the end of the data."""
    assert list(loader([1, 2])) == [1, 2]
    assert [span.name for span in recorded.spans] == ["verl.data_loading"] * 3


def test_an_error_of_a_dataset_is_recorded_and_raised(recorded, loader):
    """The exception is the dataset's own."""
    with pytest.raises(KeyError, match="prompt"):
        list(loader([KeyError("prompt")]))
    assert recorded.spans[-1].attributes["error.type"] == "KeyError"


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_the_loader_of_real_torchdata(recorded):
    """Torchdata's own class."""
    module = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed in this environment"
    )
    patch.register(data_loading.HOOKS)
    assert [int(batch) for batch in module.StatefulDataLoader([1, 2, 3], batch_size=1)] == [1, 2, 3]
    assert [span.name for span in recorded.spans] == ["verl.data_loading"] * 4
    assert recorded.value("verl.data_loading.time") > 0
