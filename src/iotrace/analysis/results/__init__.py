"""What a report says, as plain data: its JSON is the contract (docs/definitions.md has the meanings).

Times are means in ms: of ranks per measured step, of loaders per batch; ``total`` is a sum over the run.
None is unknown, never 0.
"""

from __future__ import annotations

from iotrace.analysis.results.base import (
    ReportPart as ReportPart,
    unknown as unknown,
)
from iotrace.analysis.results.device import (
    Accelerator as Accelerator,
    CollectiveKind as CollectiveKind,
    CriticalPart as CriticalPart,
    CriticalPath as CriticalPath,
    DevicePeaks as DevicePeaks,
    DevicePhase as DevicePhase,
    Gap as Gap,
    IdleByModule as IdleByModule,
    IdleByOrigin as IdleByOrigin,
    Kernel as Kernel,
    Launches as Launches,
    MemoryOperation as MemoryOperation,
    Operator as Operator,
    OperatorShapes as OperatorShapes,
    SlowStep as SlowStep,
    StreamIdle as StreamIdle,
    StreamWait as StreamWait,
)
from iotrace.analysis.results.host import (
    Calibration as Calibration,
    Forecast as Forecast,
    Gpu as Gpu,
    HostUse as HostUse,
    Overhead as Overhead,
    ProcessUse as ProcessUse,
    System as System,
)
from iotrace.analysis.results.io import (
    Amplification as Amplification,
    ChunkedArray as ChunkedArray,
    Chunks as Chunks,
    DeviceReads as DeviceReads,
    FileGroup as FileGroup,
    FileIo as FileIo,
    Io as Io,
    MappedReads as MappedReads,
    MountIo as MountIo,
    ProcessCoverage as ProcessCoverage,
    ReadPattern as ReadPattern,
    RowGroups as RowGroups,
)
from iotrace.analysis.results.loop import (
    DataWait as DataWait,
    Excluded as Excluded,
    FileCost as FileCost,
    HangInfo as HangInfo,
    HungProcess as HungProcess,
    LoaderResult as LoaderResult,
    LoaderWait as LoaderWait,
    LoopReads as LoopReads,
    PhasesMs as PhasesMs,
    RegionResult as RegionResult,
    SlowLoopStep as SlowLoopStep,
    SlowLoopSteps as SlowLoopSteps,
    StageCost as StageCost,
    StepBlocks as StepBlocks,
    Steps as Steps,
    WorstBatch as WorstBatch,
)
from iotrace.analysis.results.program import (
    MEMORY_BY_OPERATOR as MEMORY_BY_OPERATOR,
    Memory as Memory,
    MemoryDevice as MemoryDevice,
    MemoryModule as MemoryModule,
    MemoryOperator as MemoryOperator,
    MemoryPoint as MemoryPoint,
    Model as Model,
    ModelLayer as ModelLayer,
    PhaseSpeed as PhaseSpeed,
    Snapshot as Snapshot,
    Speed as Speed,
    SpeedPoint as SpeedPoint,
    TrainerRange as TrainerRange,
    TrainerTimes as TrainerTimes,
)
from iotrace.analysis.results.ranks import (
    Collectives as Collectives,
    Imbalance as Imbalance,
    LateCollective as LateCollective,
    LateGroup as LateGroup,
    LateKind as LateKind,
    RankBalance as RankBalance,
    Straggler as Straggler,
)
from iotrace.analysis.results.report import (
    GONE as GONE,
    HALVED as HALVED,
    SCHEMA_VERSION as SCHEMA_VERSION,
    ClockInfo as ClockInfo,
    ClockSet as ClockSet,
    Culprit as Culprit,
    Failure as Failure,
    Fix as Fix,
    GainRow as GainRow,
    ProcessInfo as ProcessInfo,
    RankReport as RankReport,
    Recommendation as Recommendation,
    Report as Report,
    SessionInfo as SessionInfo,
    Trust as Trust,
    Verdict as Verdict,
)
from iotrace.analysis.results.startup import (
    ImportedPackage as ImportedPackage,
    ImportMount as ImportMount,
    Startup as Startup,
    StartupPart as StartupPart,
)
