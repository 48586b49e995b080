"""What a report says, as plain data: its JSON is the contract (docs/definitions.md has the meanings).

Times are means in ms: of ranks per measured step, of loaders per batch; ``total`` is a sum over the run.
None is unknown, never 0.
"""

from __future__ import annotations

from iotrace.analysis.results.base import (
    ReportPart as ReportPart,
)
from iotrace.analysis.results.base import (
    unknown as unknown,
)
from iotrace.analysis.results.device import (
    Accelerator as Accelerator,
)
from iotrace.analysis.results.device import (
    CollectiveKind as CollectiveKind,
)
from iotrace.analysis.results.device import (
    CriticalPart as CriticalPart,
)
from iotrace.analysis.results.device import (
    CriticalPath as CriticalPath,
)
from iotrace.analysis.results.device import (
    DevicePeaks as DevicePeaks,
)
from iotrace.analysis.results.device import (
    Gap as Gap,
)
from iotrace.analysis.results.device import (
    IdleByModule as IdleByModule,
)
from iotrace.analysis.results.device import (
    IdleByOrigin as IdleByOrigin,
)
from iotrace.analysis.results.device import (
    Kernel as Kernel,
)
from iotrace.analysis.results.device import (
    Launches as Launches,
)
from iotrace.analysis.results.device import (
    MemoryOperation as MemoryOperation,
)
from iotrace.analysis.results.device import (
    Operator as Operator,
)
from iotrace.analysis.results.device import (
    OperatorShapes as OperatorShapes,
)
from iotrace.analysis.results.device import (
    SlowStep as SlowStep,
)
from iotrace.analysis.results.device import (
    StreamIdle as StreamIdle,
)
from iotrace.analysis.results.device import (
    StreamWait as StreamWait,
)
from iotrace.analysis.results.host import (
    Amplification as Amplification,
)
from iotrace.analysis.results.host import (
    Calibration as Calibration,
)
from iotrace.analysis.results.host import (
    ChunkedArray as ChunkedArray,
)
from iotrace.analysis.results.host import (
    Chunks as Chunks,
)
from iotrace.analysis.results.host import (
    DeviceReads as DeviceReads,
)
from iotrace.analysis.results.host import (
    FileGroup as FileGroup,
)
from iotrace.analysis.results.host import (
    FileIo as FileIo,
)
from iotrace.analysis.results.host import (
    Forecast as Forecast,
)
from iotrace.analysis.results.host import (
    Gpu as Gpu,
)
from iotrace.analysis.results.host import (
    HostUse as HostUse,
)
from iotrace.analysis.results.host import (
    Io as Io,
)
from iotrace.analysis.results.host import (
    MountIo as MountIo,
)
from iotrace.analysis.results.host import (
    Overhead as Overhead,
)
from iotrace.analysis.results.host import (
    ProcessCoverage as ProcessCoverage,
)
from iotrace.analysis.results.host import (
    ProcessUse as ProcessUse,
)
from iotrace.analysis.results.host import (
    ReadPattern as ReadPattern,
)
from iotrace.analysis.results.host import (
    System as System,
)
from iotrace.analysis.results.loop import (
    DataWait as DataWait,
)
from iotrace.analysis.results.loop import (
    Excluded as Excluded,
)
from iotrace.analysis.results.loop import (
    FileCost as FileCost,
)
from iotrace.analysis.results.loop import (
    LoaderResult as LoaderResult,
)
from iotrace.analysis.results.loop import (
    LoaderWait as LoaderWait,
)
from iotrace.analysis.results.loop import (
    LoopReads as LoopReads,
)
from iotrace.analysis.results.loop import (
    PhasesMs as PhasesMs,
)
from iotrace.analysis.results.loop import (
    RegionResult as RegionResult,
)
from iotrace.analysis.results.loop import (
    SlowLoopStep as SlowLoopStep,
)
from iotrace.analysis.results.loop import (
    SlowLoopSteps as SlowLoopSteps,
)
from iotrace.analysis.results.loop import (
    StageCost as StageCost,
)
from iotrace.analysis.results.loop import (
    StepBlocks as StepBlocks,
)
from iotrace.analysis.results.loop import (
    Steps as Steps,
)
from iotrace.analysis.results.loop import (
    WorstBatch as WorstBatch,
)
from iotrace.analysis.results.program import (
    MEMORY_BY_OPERATOR as MEMORY_BY_OPERATOR,
)
from iotrace.analysis.results.program import (
    Memory as Memory,
)
from iotrace.analysis.results.program import (
    MemoryDevice as MemoryDevice,
)
from iotrace.analysis.results.program import (
    MemoryModule as MemoryModule,
)
from iotrace.analysis.results.program import (
    MemoryOperator as MemoryOperator,
)
from iotrace.analysis.results.program import (
    MemoryPoint as MemoryPoint,
)
from iotrace.analysis.results.program import (
    Model as Model,
)
from iotrace.analysis.results.program import (
    ModelLayer as ModelLayer,
)
from iotrace.analysis.results.program import (
    PhaseSpeed as PhaseSpeed,
)
from iotrace.analysis.results.program import (
    Snapshot as Snapshot,
)
from iotrace.analysis.results.program import (
    Speed as Speed,
)
from iotrace.analysis.results.program import (
    SpeedPoint as SpeedPoint,
)
from iotrace.analysis.results.program import (
    TrainerRange as TrainerRange,
)
from iotrace.analysis.results.program import (
    TrainerTimes as TrainerTimes,
)
from iotrace.analysis.results.ranks import (
    Collectives as Collectives,
)
from iotrace.analysis.results.ranks import (
    Imbalance as Imbalance,
)
from iotrace.analysis.results.ranks import (
    LateCollective as LateCollective,
)
from iotrace.analysis.results.ranks import (
    LateKind as LateKind,
)
from iotrace.analysis.results.ranks import (
    RankBalance as RankBalance,
)
from iotrace.analysis.results.ranks import (
    Straggler as Straggler,
)
from iotrace.analysis.results.report import (
    SCHEMA_VERSION as SCHEMA_VERSION,
)
from iotrace.analysis.results.report import (
    ClockInfo as ClockInfo,
)
from iotrace.analysis.results.report import (
    ClockSet as ClockSet,
)
from iotrace.analysis.results.report import (
    Culprit as Culprit,
)
from iotrace.analysis.results.report import (
    Failure as Failure,
)
from iotrace.analysis.results.report import (
    Fix as Fix,
)
from iotrace.analysis.results.report import (
    GainRow as GainRow,
)
from iotrace.analysis.results.report import (
    ProcessInfo as ProcessInfo,
)
from iotrace.analysis.results.report import (
    RankReport as RankReport,
)
from iotrace.analysis.results.report import (
    Recommendation as Recommendation,
)
from iotrace.analysis.results.report import (
    Report as Report,
)
from iotrace.analysis.results.report import (
    SessionInfo as SessionInfo,
)
from iotrace.analysis.results.report import (
    Trust as Trust,
)
from iotrace.analysis.results.report import (
    Verdict as Verdict,
)
from iotrace.analysis.results.startup import (
    ImportedPackage as ImportedPackage,
)
from iotrace.analysis.results.startup import (
    ImportMount as ImportMount,
)
from iotrace.analysis.results.startup import (
    Startup as Startup,
)
from iotrace.analysis.results.startup import (
    StartupPart as StartupPart,
)
