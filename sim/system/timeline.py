"""A point to simulate, and the timeline that comes of it."""

from dataclasses import dataclass, field

from sim.system.workload import Decoder, Vision

RESIDENT = ("resident", "oaken")  # policies that keep the whole cache on the device


@dataclass(frozen=True)
class Point:
    """What is simulated: `rows` new tokens of each of `batch` streams before a cache of `cache` tokens each.

    frame  : the rows are a frame, whose image is encoded first; else a question or a generated token
    policy : of `sim.system.workload.TABLE_II`; or flexgen (everything is fetched), resident (nothing is), oaken
    (nothing, 4 bits)
    """

    cache: int
    batch: int = 1
    rows: int = 10
    frame: bool = True
    policy: str = "resv"
    model: Decoder = Decoder()
    vision: Vision = Vision()

    def __post_init__(self):
        for name in ("cache", "batch", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def device_bytes(self) -> int:
        """Weights of both models, and the caches of a policy that keeps them on the device."""
        cache = {"resident": 1.0, "oaken": 0.25 * 1.1}.get(self.policy, 0.0)  # Oaken: 4 bits, about a tenth of outliers
        return int(
            2 * (self.model.pass_weights + self.vision.weights)
            + self.batch * self.cache * self.model.token_bytes * cache
        )

    @property
    def stage(self) -> str:
        """Of the selection's two."""
        return "frame" if self.rows > 1 else "text"


@dataclass(frozen=True)
class Stage:
    """`name` of layer `layer` (-1 for what is outside of the decoder) on `resource`, from `start` to `end` seconds.

    bytes : of device memory, read or written · ops : useful multiplications and additions
    """

    layer: int
    name: str
    resource: str
    start: float
    end: float
    bytes: float = 0.0
    ops: float = 0.0


@dataclass(frozen=True)
class Pass:
    """One pass through the decoder, the vision encoder before it included where there is one.

    fetched : bytes over the link · watts : mean power of each part
    """

    stages: list[Stage]
    fetched: float
    watts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Latency."""
        return max(s.end for s in self.stages)

    @property
    def ops(self) -> float:
        """Useful operations."""
        return sum(s.ops for s in self.stages)

    @property
    def joules(self) -> float:
        """Energy of everything there is."""
        return sum(self.watts.values()) * self.seconds

    def busy(self, resource: str) -> float:
        """Seconds in which a resource works."""
        return sum(s.end - s.start for s in self.stages if s.resource == resource)

    def busy_share(self, name: str) -> float:
        """Of the seconds of all stages, hidden or not, those of this name."""
        return self.named(name) / sum(s.end - s.start for s in self.stages)

    def named(self, *names: str) -> float:
        """Seconds of all stages of these names."""
        return sum(s.end - s.start for s in self.stages if s.name in names)


class Timeline:
    """Stages on resources that take one at a time, in the order in which they are put."""

    def __init__(self):
        self.stages: list[Stage] = []
        self.free: dict[str, float] = {}

    def put(
        self, layer: int, name: str, resource: str, seconds: float, after: float = 0.0, bytes=0.0, ops=0.0
    ) -> float:
        """A stage that starts when its resource is free and `after` has come; its end."""
        start = max(self.free.get(resource, 0.0), after)
        end = self.free[resource] = start + float(seconds)
        self.stages.append(Stage(layer, name, resource, start, end, float(bytes), float(ops)))
        return end
