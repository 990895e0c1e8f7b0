"""What the daemon is told at its start. Each organ is given its own small part, never the whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from worker.assembler import BatchLimits
from worker.bridge import BridgeConfig
from worker.governor import LeakLimits, Precision, Thresholds
from worker.media.types import MediaLimits
from worker.webhooks import WebhookConfig

MAX_BEAT_S = 2.0


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    lease_s: float = 15.0
    """Seconds without renewal after which another worker may take a delivery over."""

    @property
    def beat_s(self) -> float:
        """Seconds between two signs of life, at most: the name's lock lapses with the lease, and must not meanwhile."""
        return min(MAX_BEAT_S, self.lease_s / 3)

    @property
    def reconnect_s(self) -> float:
        """Seconds between two looks for a server that is away, at most. Others wait one lease after its return before
        they take over what we hold: by then we must have found it too, and have renewed."""
        return self.lease_s / 3

    @property
    def renew_s(self) -> float:
        """A third of the lease: two renewals may be lost before it lapses."""
        return self.lease_s / 3


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine process is started and kept; what it is told itself is in ``process``."""

    serve: tuple[str, ...]
    """Aliases that this worker loads and takes jobs for."""
    process: EngineConfig
    command: tuple[str, ...] | None = None
    """The engine's argv, for a stand-in; None for ``python -m engine``."""
    start_timeout_s: float = 60.0
    """Seconds until the process must have said that it is there."""
    restart_backoff_s: tuple[float, ...] = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
    """Pauses before the first, second, ... restart in a row; the last one repeats."""
    settled_after_s: float = 60.0
    """Seconds of life after which an exit is the first in a row again."""
    unready_after: int = 3
    """Failures in a row after which the worker says that it is not ready."""


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What a worker looks at besides its work."""

    canary: bool = True
    """Whether it measures itself on a clip once the models are loaded."""
    state_dir: Path | None = None
    """Where the best speed so far is kept; None keeps none, so that every speed is the best."""
    keep_awake: bool = True
    """Whether a Mac is kept from sleeping while there is work."""
    read_every: int = 5
    """Seconds between two readings of processors and queue."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    redis_url: str
    queue: str
    name: str
    """Consumer name; where it is taken by a living worker, a number is added."""
    spool_dir: Path
    engine: EngineSettings
    media: MediaLimits = field(default_factory=MediaLimits)
    media_processes: int = 2
    lease: LeaseConfig = field(default_factory=LeaseConfig)
    batch: BatchLimits = field(default_factory=BatchLimits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    precision: Precision = field(default_factory=Precision)
    leaks: LeakLimits = field(default_factory=LeakLimits)
    watch: WatchConfig = field(default_factory=WatchConfig)
    credits: int = 32
    """Deliveries held at most."""
    max_waiting_chunks: int = 512
    """Chunks decoded and not yet dispatched above which nothing more is taken."""
    drain_s: float = 30.0
    """Seconds that running work may take after the first SIGTERM."""
    poison_after: int = 2
    """Crashes of the engine by a job while alone after which it is dead (invariant I4)."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 60.0
    served_horizon_s: float = 7 * 86400.0
    """A model that no worker has served for so long is unknown, and its jobs fail."""
    max_result_bytes: int = 16 * 1024**2
    """A result larger than this, as JSON, fails the job."""
    webhooks: WebhookConfig | None = None
    """How the ends of jobs are told to URLs; None where this worker tells none."""
    bridge: BridgeConfig | None = None
    """Queues of RQ whose jobs this worker takes; None for none."""
    step_log: Path | None = None
    """Where to append a JSON line for each step of the engine; never holds text."""
    memory_log: Path | None = None
    """Where to append a JSON line for each reading of memory, each decision about it and each batch's forecast."""
