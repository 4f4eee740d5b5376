"""Simulated vLLM: what a configuration would do on a GPU, in virtual time. Every figure is simulated.

:class:`Simulator` turns a configuration and a workload into the outcome that a worker would report, within a
fraction of a second. docs/simulator.md says what it models, how far it is off, and what it leaves out.
"""

from __future__ import annotations

from tuner.simulation.arguments import Arguments
from tuner.simulation.calibration import Calibration, calibrated
from tuner.simulation.hardware import GPUS, Gpu, gpu_by_name
from tuner.simulation.memory import MemoryFigures, MemoryModel
from tuner.simulation.models import ModelShape
from tuner.simulation.scheduler import Batch
from tuner.simulation.startup import CompileCache, Startup
from tuner.simulation.steptimes import Roofline, StepTimes
from tuner.simulation.trial import Noise, SimulatedTrial, Simulator

__all__ = [
    "GPUS",
    "Arguments",
    "Batch",
    "Calibration",
    "CompileCache",
    "Gpu",
    "MemoryFigures",
    "MemoryModel",
    "ModelShape",
    "Noise",
    "Roofline",
    "SimulatedTrial",
    "Simulator",
    "Startup",
    "StepTimes",
    "calibrated",
    "gpu_by_name",
]
