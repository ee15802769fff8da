"""Settings typed as `-p name=value`."""

from collections.abc import Iterator

from openvrex.golden.function_params import check


def assigned(assignments: list[str], form: str) -> Iterator[tuple[str, str]]:
    """Name and value of each -p. Raises: `ParamError` for what does not look like `form`."""
    for text in assignments:
        name, _, value = text.partition("=")
        check(bool(name and value), "-p", text, f"must look like {form}")
        yield name, value
