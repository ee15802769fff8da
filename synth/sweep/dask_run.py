"""Evaluates the points of a sweep on Dask. Known points come from the database; others enter it as their tasks end."""

import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster, as_completed
from distributed.client import Future

from openvrex.golden.function_params import ParamError, check
from openvrex.synth.sweep import point_costs
from openvrex.synth.sweep.database import Database, Row
from openvrex.synth.sweep.point_costs import Settings, Task
from openvrex.synth.sweep.points import Design, Point

CLUSTERS = {"slurm": ("sbatch", "SLURMCluster"), "lsf": ("bsub", "LSFCluster")}  # command, class of dask-jobqueue
CONNECT = 10  # seconds to wait for a scheduler
# Seconds of a task of `core` on the shipped traces, on one processor: the estimate until a task of its kind has ended.
EXPECTED = {"stream": 0.3, "table cycles": 1.0, "wtu cycles": 0.5, "point": 0.1}
EXPECTED |= {"hcu synthesis": 4.0, "wtu synthesis": 45.0, "cluster_set synthesis": 2.0, "kvmu synthesis": 4.0}
EXPECTED |= {"table_port synthesis": 4.0} | {f"{unit} energy": 10.0 for unit in point_costs.RECORDED}
NO_WORKERS = 60  # seconds after which a scheduler without workers is an error


class ClusterError(ValueError):
    """A scheduler or cluster that cannot be used. The message names it and the fix, in one line."""


@dataclass(frozen=True)
class Timed:
    """A task's result, and the seconds of it and of all tasks before it, by key."""

    value: object
    spent: dict[str, float]


def timed(code: str, key: str, task: Callable, arguments: tuple, *inputs: Timed) -> Timed:
    """Runs `task(*arguments, *inputs)` on a worker. Raises `RuntimeError` if its sources differ from `code`."""
    if code != point_costs.code():
        raise RuntimeError("this worker runs other code than the sweep; start it again from the same source")
    start = time.perf_counter()
    value = task(*arguments, *(i.value for i in inputs))
    spent = {k: s for i in inputs for k, s in i.spent.items()}
    return Timed(value, spent | {key: time.perf_counter() - start})


@dataclass
class Estimate:
    """Estimates when a sweep ends. A task left takes the mean of its kind so far, or `EXPECTED` before one has ended.

    left : kind of each task left, by key
    seconds : own seconds of each task that has ended, by kind and key
    """

    left: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def expect(self, task: Task) -> None:
        """Adds a task that will run, and the tasks before it."""
        self.left[task.key] = task.kind
        for t in task.inputs:
            self.expect(t)

    def done(self, task: Task, spent: dict[str, float]) -> None:
        """Records that a point has ended. `spent` holds the seconds of its tasks, nothing if it failed."""
        for key in (task.key, *spent):
            kind = self.left.pop(key, None)
            if kind and key in spent:
                self.seconds[kind][key] = spent[key]

    def remaining(self, workers: int) -> float | None:
        """Seconds until the end; None without workers."""
        own = {kind: sum(s.values()) / len(s) for kind, s in self.seconds.items()}
        kinds = Counter(self.left.values())
        return sum(n * own.get(k, EXPECTED.get(k, 1.0)) for k, n in kinds.items()) / workers if workers else None


@contextmanager
def cluster(scheduler: str | None = None, jobs: str | None = None, workers: int | None = None) -> Iterator[Client]:
    """A client of a scheduler, of a Slurm or LSF cluster, or of processes on this machine (the default).

    scheduler : its address
    jobs : "slurm" or "lsf"
    workers : number of jobs (default 2), or of processes (default one a processor)
    Raises: `ClusterError` if no scheduler or worker answers, `ParamError` for arguments that contradict.
    """
    check(not (scheduler and (jobs or workers)), "scheduler", scheduler, "has workers of its own; leave out the others")
    check(workers is None or workers >= 1, "workers", workers, "must be at least 1")
    if scheduler:
        with _client(scheduler, CONNECT) as client:
            _wait(client, scheduler)
            yield client
    elif jobs:
        with _jobs(jobs) as own, _client(own, CONNECT) as client:
            own.adapt(minimum=workers or 2, maximum=workers or 2)  # a job that reaches its wall time is replaced
            yield client
    else:
        quiet = {"dashboard_address": ":0", "silence_logs": "CRITICAL"}
        # Dask makes workers return freed memory to the system at once, which slows NumPy's large arrays by a third.
        keep = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None}
        with dask.config.set(keep), ExitStack() as stack:
            with _interrupts_held():
                made = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, **quiet)
                own = stack.enter_context(made)
            yield stack.enter_context(_client(own, CONNECT))


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Holds Ctrl-C until the end of the block. It never reaches the threads and processes that start in the block.

    They inherit the mask, as do workers that start again later. Otherwise each would end in a traceback.
    """
    resource_tracker.ensure_running()  # if it started with the first process, it would end the mask
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _client(address: Any, timeout: float) -> Client:
    """A client of the scheduler at an address or of a cluster. Raises `ClusterError` if none answers."""
    dask.config.set({"distributed.comm.timeouts.connect": timeout})  # also limits the wait for a scheduler that is lost
    found: futures.Future[Client] = futures.Future()

    def connect() -> None:
        try:
            found.set_result(Client(address, timeout=timeout))
        except BaseException as e:  # for the thread that waits
            found.set_exception(e)

    try:
        # Dask itself waits for minutes on a server that accepts and says nothing; so it waits in a thread of its own.
        threading.Thread(target=connect, daemon=True).start()
        return found.result(timeout + timeout / 10)
    except (OSError, ValueError) as e:
        fix = "start one with 'dask scheduler', or check the address"
        why = str(e) or "it accepts and says nothing"
        raise ClusterError(f"{address}: no scheduler answers within {timeout} s; {fix} ({why})") from None


def _wait(client: Client, address: str) -> None:
    """Waits for a worker. Raises `ClusterError` if none comes."""
    try:
        client.wait_for_workers(1, timeout=NO_WORKERS)
    except TimeoutError:
        fix = f"start some with 'dask worker {address} --nthreads 1'"
        raise ClusterError(f"{address}: the scheduler has no workers; {fix}") from None


def _jobs(name: str) -> Any:
    """A cluster whose jobs have one process each. Dask's configuration (`jobqueue.NAME`) states their resources."""
    check(name in CLUSTERS, "cluster", name, f"must be one of local, {', '.join(CLUSTERS)}")
    try:
        import dask_jobqueue
    except ImportError:
        raise ClusterError(f"--cluster {name} needs dask-jobqueue: pip install 'openvrex[cluster]'") from None
    command, kind = CLUSTERS[name]
    if shutil.which(command) is None:
        raise ClusterError(f"--cluster {name}: there is no {command} here; run this on a host that submits jobs")
    asked = dask.config.get(f"jobqueue.{name}", {})
    cores, memory = asked.get("cores") or 1, asked.get("memory") or "4GB"
    return getattr(dask_jobqueue, kind)(cores=cores, processes=1, memory=memory)


def results(client: Client, task: Callable, tasks: Mapping[str, object]) -> Iterator[tuple[str, Row]]:
    """Runs `task` on the workers for each argument of `tasks`; yields key and row of each as it ends.

    A task that fails has its error in its row. Raises `ClusterError` if the scheduler is lost.
    """
    own = point_costs.code()
    of = {client.submit(timed, own, key, task, (argument,), key=key): key for key, argument in tasks.items()}
    try:
        for future in as_completed(of, raise_errors=False):
            if future.status not in ("finished", "error"):
                raise OSError(f"a task is {future.status}")
            done = future.status == "finished"
            yield of[future], Row(future.result().value) if done else Row.failed(future.exception())
    except OSError as e:
        fix = "results so far are kept: run the same command again"
        raise ClusterError(f"the scheduler is lost; {fix} ({e})") from None


@dataclass
class Sweep:
    """Evaluates points for `objectives` and keeps the results in `database`.

    design : gives the design of a point; may raise `ParamError`
    connect : gives a client; called when the first unknown point comes
    progress : called with the number of points that have just ended (0 at the start) and the seconds left
    futures : futures by key of their task; later points reuse those that they share
    """

    settings: Settings
    objectives: tuple[str, ...]
    design: Callable[[Point], Design]
    database: Database
    connect: Callable[[], Client]
    progress: Callable[[int, float | None], None] = lambda ended, left: None
    futures: dict[str, Future] = field(default_factory=dict, init=False)

    def run(self, points: Iterable[Point]) -> list[Row]:
        """The rows of `points`, in their order. A point that fails has its error in its row."""
        points = list(points)
        rows: dict[int, Row] = {}  # by number of the point
        open_: dict[str, list[int]] = defaultdict(list)  # numbers of unknown points by key; several may be one design
        tasks: dict[str, Task] = {}
        for i, point in enumerate(points):
            try:
                design = self.design(point)
            except ParamError as e:
                rows[i] = Row({}, str(e))
                self.database.put(point_costs.key_of(point, self.settings), point, rows[i])
                continue
            key = point_costs.key_of(design, self.settings)
            known = self.database.get([key]).get(key)
            if known and all(o in known.result for o in self.objectives):
                rows[i] = Row(known.result)  # an error in the database concerns other objectives
            else:
                open_[key].append(i)
                tasks[key] = point_costs.task(design, self.objectives, self.settings)
        self.progress(len(rows), None)
        if tasks:
            for keys, row, left in self._evaluate(tasks):
                for key in keys:
                    self.database.put(key, points[open_[key][0]], row)
                    for i in open_[key]:
                        rows[i] = row
                self.progress(sum(len(open_[key]) for key in keys), left)
        return [rows[i] for i in range(len(points))]

    def _evaluate(self, tasks: dict[str, Task]) -> Iterator[tuple[list[str], Row, float | None]]:
        """Keys of designs that ended together, their row, and the seconds left. The first yield has no key."""
        client = self.connect()
        estimate = Estimate()
        self.futures = {k: f for k, f in self.futures.items() if f.status == "finished"}  # failed tasks are tried again
        of: dict[Future, list[str]] = defaultdict(list)  # designs that no objective tells apart share a task
        for key, task in tasks.items():
            estimate.expect(task)
            of[self._submit(client, task)].append(key)
        yield [], Row({}), estimate.remaining(sum(client.nthreads().values()))
        try:
            for future in as_completed(of, raise_errors=False):
                keys = of[future]
                if future.status == "finished":
                    timed = future.result()
                    estimate.done(tasks[keys[0]], timed.spent)
                    row = Row(timed.value)
                elif future.status == "error":
                    estimate.done(tasks[keys[0]], {})
                    row = Row.failed(future.exception())
                else:
                    raise OSError(f"a point's task is {future.status}")
                left = estimate.remaining(sum(client.nthreads().values()))
                yield keys, row, left
        except OSError as e:
            fix = "results so far are kept: run the same command again"
            raise ClusterError(f"the scheduler is lost; {fix} ({e})") from None

    def _submit(self, client: Client, task: Task) -> Future:
        """The future of a task. A task that points share is submitted once."""
        if task.key not in self.futures:
            inputs = [self._submit(client, t) for t in task.inputs]
            call = (self.settings.code, task.key, task.function, task.arguments, *inputs)
            self.futures[task.key] = client.submit(timed, *call, key=task.key)
        return self.futures[task.key]
