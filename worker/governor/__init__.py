"""Admission by memory: levels, prediction, precision, leaks. Everything here decides; :mod:`worker.governing` acts."""

from worker.governor.cost import CostModel, Load, Row
from worker.governor.governor import Forecast, Governor, Precision, Restart
from worker.governor.leaks import LeakLimits
from worker.governor.levels import Decision, Level, Thresholds, Transition, danger_bytes
from worker.governor.precision import Change

__all__ = [
    "Change",
    "CostModel",
    "Decision",
    "Forecast",
    "Governor",
    "LeakLimits",
    "Level",
    "Load",
    "Precision",
    "Restart",
    "Row",
    "Thresholds",
    "Transition",
    "danger_bytes",
]
