"""What cannot be exported faithfully, and where in the author's source the reason is."""

import contextlib
import linecache
import logging
import os
import re
import traceback
import warnings

import numpy
import torch

OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
LIBRARIES = tuple(os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (torch, numpy))


class Refused(Exception):
    """The model cannot be exported faithfully; the text says why and what to do."""


def is_authors(filename):
    """Whether a source file belongs to the model, and not to torch, to this package or to no file."""
    return os.path.isfile(filename) and not filename.startswith((OURS, *LIBRARIES))


def innermost(frames):
    """Returns "FILE:LINE: TEXT" of the last of `frames` (of `traceback`) that is the author's. Empty if none is."""
    for frame in reversed(list(frames)):
        if is_authors(frame.filename):
            return f"{frame.filename}:{frame.lineno}: {(frame.line or '').strip()}"
    return ""


def place_in_graph(stack_trace):
    """Returns the author's innermost line in the `stack_trace` of a node of torch.export, or an empty text."""
    place = ""
    for line in (stack_trace or "").splitlines():
        words = line.strip().split('"')
        if len(words) == 3 and words[0] == "File " and is_authors(words[1]):
            number = int(words[2].split(",")[1].split()[1])
            place = f"{words[1]}:{number}: {linecache.getline(words[1], number).strip()}"
    return place


def place_in_error(error):
    """Returns the author's innermost line in the text of an error of the TorchScript interpreter, or an empty text."""
    inside = re.findall(r'^  File "(.+)", line (\d+)', str(error), re.MULTILINE)[::-1]  # What accel imports.
    traced = re.findall(r"^(/.+)\((\d+)\): ", str(error), re.MULTILINE)
    for filename, number in [*traced, *inside]:
        if is_authors(filename):
            return f"{filename}:{number}: {linecache.getline(filename, int(number)).strip()}"
    return ""


def module_of(error, model):
    """Returns the name of the innermost module of `model` in whose methods `error` was raised, or an empty text."""
    names = {id(module): name for name, module in model.named_modules()}
    found, step = "", error.__traceback__
    while step is not None:
        found = names.get(id(step.tb_frame.f_locals.get("self")), "") or found
        step = step.tb_next
    return found


@contextlib.contextmanager
def named(step, model, hint):
    """Turns any error of `step` into Refused, with the module of `model` and the author's line. `hint` maps it to what to
    do. Without a model (None) a library has failed on what the user gave, and its lines say nothing. torch's own reports of
    the error and its warnings are not shown."""
    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            yield
    except Refused:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        text = f"{step} fails: {reason}"
        if model is not None and (module := module_of(error, model)):
            text += f"\n  in module '{module}'"
        if model is not None and (place := innermost(traceback.extract_tb(error.__traceback__))):
            text += f"\n  at {place}"
        raise Refused(f"{text}\nhint: {hint(error)}") from error


@contextlib.contextmanager
def quiet():
    """Disables logging, which torch uses to print whole graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
