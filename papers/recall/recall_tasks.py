"""Tasks that need exact content: a text that holds facts, a question about one of them, and its answer.

The average loss of a text hides what retrieval is for: a model that forgets one number in a thousand words loses next
to nothing. These tasks ask for that number. The text around the facts is the standard library's documentation.

A task is a function of its name, the seed, the length and the depth alone.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pydoc_data.topics import topics

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import Tokenizer

LEAST = 256  # tokens of a text that holds a task's facts
CITIES = ("Lima", "Oslo", "Cairo", "Delhi", "Paris", "Tokyo", "Quito", "Accra")


@dataclass(frozen=True)
class RecallTask:
    """Token ids of a text, of the question after it, and of the answer, which is read token by token."""

    text: list[int]
    question: list[int]
    answer: list[int]


def passkey(
    rng: random.Random, around: Callable[[int], list[int]], t: Tokenizer, size: int, depth: float
) -> RecallTask:
    """A key of five digits at a share `depth` of the text."""
    key = _digits(rng)
    fact = t.encode(f"\nThe pass key is {key}. Remember it: {key} is the pass key.\n")
    return RecallTask(
        _inserted(around(size - len(fact)), {depth: fact}),
        t.encode("\nWhat is the pass key? The pass key is "),
        t.encode(key),
    )


def keys(rng: random.Random, around: Callable[[int], list[int]], t: Tokenizer, size: int, depth: float) -> RecallTask:
    """Four keys of different cities, spread over the text; the one at `depth` is asked for."""
    cities, own = rng.sample(CITIES, 4), [_digits(rng) for _ in range(4)]
    facts = [
        t.encode(f"\nThe pass key of {c} is {k}. Remember it: {k} is the pass key of {c}.\n")
        for c, k in zip(cities, own, strict=True)
    ]
    depths = [depth, *((depth + i / 4) % 1 for i in (1, 2, 3))]
    text = around(size - sum(map(len, facts)))
    question = t.encode(f"\nWhat is the pass key of {cities[0]}? The pass key of {cities[0]} is ")
    return RecallTask(_inserted(text, dict(zip(depths, facts, strict=True))), question, t.encode(own[0]))


def lookup(rng: random.Random, around: Callable[[int], list[int]], t: Tokenizer, size: int, depth: float) -> RecallTask:
    """A table of names and numbers that fills the text; the number of the name at `depth` is asked for."""
    rows: list[tuple[str, str]] = []
    out: list[int] = []
    while True:
        name = f"{rng.choice(CITIES)}-{rng.randrange(100, 1000)}"
        line = t.encode(f"{name}: {(number := _digits(rng))}\n")
        if len(out) + len(line) > size:
            break
        if name not in dict(rows):
            rows.append((name, number))
            out += line
    name, number = rows[min(len(rows) - 1, int(depth * len(rows)))]
    return RecallTask(out, t.encode(f"\n{name}: "), t.encode(number))


def repeat(rng: random.Random, around: Callable[[int], list[int]], t: Tokenizer, size: int, depth: float) -> RecallTask:
    """A passage of 48 tokens at `depth`, of which the first half is repeated; the second half is to follow."""
    text = around(size)
    start = min(int(depth * size), size - 48)
    return RecallTask(text, text[start : start + 24], text[start + 24 : start + 48])


TASKS = {f.__name__: f for f in (passkey, keys, lookup, repeat)}


def task(name: str, seed: int, size: int, depth: float, tokenizer: Tokenizer) -> RecallTask:
    """A task of `size` tokens of text, those that a text begins with (`Tokenizer.start`) included.

    Raises: `ParamError` for an unknown name, or more text than there is.
    """
    check(name in TASKS, "task", name, f"must be one of {', '.join(TASKS)}")
    rng, ids = random.Random(f"{name} {seed}"), _documentation(tokenizer)
    check(size <= len(ids), "tokens", size, f"must be at most {len(ids)}: the documentation has no more")
    start = rng.randrange(len(ids) - size + 1)
    made = TASKS[name](rng, lambda n: ids[start : start + n], tokenizer, size - len(tokenizer.start), depth)
    return replace(made, text=[*tokenizer.start, *made.text])


def _digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(5))


def _inserted(text: list[int], facts: dict[float, list[int]]) -> list[int]:
    """The text with facts at shares of it."""
    out = list(text)
    for depth in sorted(facts, reverse=True):  # from the back, so that places stay
        at = int(depth * len(text))
        out[at:at] = facts[depth]
    return out


@cache
def _documentation(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)))
