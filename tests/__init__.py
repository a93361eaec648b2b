"""Tests; assertions in the helpers are explained like those of the tests."""

import pytest

pytest.register_assert_rewrite("tests.helpers")
