"""The input of a simulation (`Point`) and its result (`Pass`), a timeline of stages on resources."""

from dataclasses import dataclass, field

from openvrex.golden.arithmetic.state_space import StateSpaceParams, products
from openvrex.sim.system.workload import Decoder, Vision

DRE = ("cluster", "switch", "select", "walk")  # names of the stages of the DRE
EVERYTHING = "flexgen"  # the policy that fetches the whole cache in each layer
RESIDENT = ("resident", "oaken")  # policies that keep the whole cache on the device


@dataclass(frozen=True)
class Point:
    """One pass to simulate. Raises `ValueError` for counts below 1.

    cache  : cached tokens of each stream
    batch  : streams
    rows   : new tokens of each stream
    frame  : the rows are a frame, whose image the vision encoder encodes first; else a question or a generated token
    branch : sizes of hybrid memory's state-space branch, which each layer computes beside its attention; None: none
    policy : one of `sim.system.workload.TABLE_II`, flexgen (fetches everything), resident (keeps everything on the
             device) or oaken (the same, in 4 bits)
    """

    cache: int
    batch: int = 1
    rows: int = 10
    frame: bool = True
    policy: str = "resv"
    model: Decoder = Decoder()
    vision: Vision = Vision()
    branch: StateSpaceParams | None = None

    def __post_init__(self) -> None:
        for name in ("cache", "batch", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def branch_products(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each product of a layer's branch, by name."""
        m = self.model
        return products(self.branch, m.width, m.heads * m.head) if self.branch else {}

    @property
    def device_bytes(self) -> int:
        """Bytes of both models' weights, and of the caches if the policy keeps them on the device."""
        branch = self.model.layers * sum(k * n for k, n in self.branch_products.values())
        cache = {"resident": 1.0, "oaken": 0.25 * 1.1}.get(self.policy, 0.0)  # Oaken: 4 bits, about a tenth of outliers
        return int(
            self.model.pass_bytes
            + 2 * (self.vision.weights + self.vision.ends(self.model.width) + branch)
            + self.batch * self.cache * self.model.token_bytes * cache
        )

    @property
    def stage(self) -> str:
        """Which shares of a `Selection` apply: "frame" or "text"."""
        return "frame" if self.rows > 1 else "text"


@dataclass(frozen=True)
class Stage:
    """A stage of the timeline.

    layer : decoder layer, -1 for the vision encoder and the vocabulary
    resource : LXE, DRE, link or GPU
    start, end : seconds
    bytes : bytes of device memory, read or written
    ops : useful multiplications and additions
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
    """One pass through the decoder, for a frame with the vision encoder before it.

    fetched : bytes over the link
    watts : mean power in watts, by part
    """

    stages: list[Stage]
    fetched: float
    watts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Latency in seconds."""
        return max(s.end for s in self.stages)

    @property
    def ops(self) -> float:
        """Useful multiplications and additions of all stages."""
        return sum(s.ops for s in self.stages)

    @property
    def joules(self) -> float:
        """Energy of all parts."""
        return sum(self.watts.values()) * self.seconds

    def busy(self, resource: str) -> float:
        """Seconds in which a resource is busy."""
        return sum(s.end - s.start for s in self.stages if s.resource == resource)

    def busy_share(self, name: str) -> float:
        """Share of the stages of one name in the seconds of all stages, hidden or not."""
        return self.named(name) / sum(s.end - s.start for s in self.stages)

    def named(self, *names: str) -> float:
        """Sum of the seconds of all stages of these names."""
        return sum(s.end - s.start for s in self.stages if s.name in names)


class Timeline:
    """Collects stages. Each resource runs one stage at a time, in the order of `put`."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.free: dict[str, float] = {}  # end of the last stage, by resource

    def put(
        self,
        layer: int,
        name: str,
        resource: str,
        seconds: float,
        after: float = 0.0,
        bytes: float = 0.0,
        ops: float = 0.0,
    ) -> float:
        """Adds a stage that starts when its resource is free, but not before `after`; returns its end in seconds."""
        start = max(self.free.get(resource, 0.0), after)
        end = self.free[resource] = start + float(seconds)
        self.stages.append(Stage(layer, name, resource, start, end, float(bytes), float(ops)))
        return end
