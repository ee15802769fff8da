"""Checks outside of test files explain a failed `assert` as tests do."""

import pytest

pytest.register_assert_rewrite("tb.checks", "tb.library")
