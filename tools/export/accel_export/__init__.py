"""Exports PyTorch models for accel. `export` is for models of your own, the program accel-export for transformers'."""

from .own import export
from .refused import Refused

__all__ = ["Refused", "export"]
