"""The ports of a component in the order of the text: those of a stream side by side, `valid` and `ready` first."""

from amaranth import Value
from amaranth.lib import wiring

ROLES = ("valid", "ready", "payload")
Member = tuple[tuple[str | int, ...], wiring.Member, Value]


def members(component: wiring.Component) -> list[Member]:
    """Path, member and value of every port of the signature in its order; of a stream as in `ROLES`."""
    found = [(path, member, Value.cast(v)) for path, member, v in component.signature.flatten(component)]
    place: dict[tuple, int] = {}
    for i, (path, _, _) in enumerate(found):
        place.setdefault(path[:-1] if path[-1] in ROLES else path, i)

    def key(of: Member) -> tuple[int, int]:
        *stream, last = of[0]
        return (place[tuple(stream)], ROLES.index(last)) if last in ROLES else (place[of[0]], 0)

    return sorted(found, key=key)
