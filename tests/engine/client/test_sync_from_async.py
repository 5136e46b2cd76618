"""The sync client says and does what the async one does, because it is generated from it."""

import re

import pytest

from tests.engine.client.sync_from_async import CLIENT, CODE, MODULES, PROSE, generated


@pytest.mark.parametrize("source", MODULES)
def test_the_generated_module_is_up_to_date(source):
    assert (CLIENT / MODULES[source]).read_text() == generated(source)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in (*PROSE, *CODE)])
def test_each_rule_of_the_generator_applies_somewhere(pattern):
    assert any(re.search(pattern, (CLIENT / source).read_text()) for source in MODULES)
