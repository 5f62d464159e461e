"""Exports PyTorch models for accel. `export` is for models of your own, the program accel-export for transformers'."""

__all__ = ["Refused", "export"]


def __getattr__(name):
    """Imports torch only where it is used: the program's --help is quick, and its message names a package that is missing."""
    if name == "Refused":
        from .refused import Refused
        return Refused
    if name == "export":
        from .own import export
        return export
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
