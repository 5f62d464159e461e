"""Records a model, writes the file, compares it with the model, and only then gives the file its name."""

import contextlib
import dataclasses
import functools
import gc
import os
import pathlib
import shutil
import tempfile

import torch

from . import accel_program, check, locate, notes, packs, program, ranks, tensor_parallel, tracing, words
from .refused import Refused


@dataclasses.dataclass
class Options:
    is_program: bool = True  # .pt2, and not TorchScript.
    with_values: bool = True
    accel: str | None = None
    check: bool = True
    accept: tuple[str, ...] = ()
    say: callable = print
    overwrite: bool = False
    words: type = words.Flags  # The names of the options in messages.
    compile: bool = False  # Add compiled code of the layers.
    compile_memory: float = 1.0  # compiled.compile_layers()
    compile_autocast: torch.dtype | None = None


def refuse_contradictions(options, dtype):
    """Raises Refused for options of compiled code that no training of a model in `dtype` has."""
    autocast = options.compile_autocast
    if not options.compile and (options.compile_memory != 1 or autocast is not None):
        raise Refused(f"memory and autocast of compiled layers are given, and no layer is compiled\nhint: add {options.words.compile}")
    if autocast is not None and dtype not in (torch.float32, autocast):
        one, other = notes.NAMES_OF_DTYPES[dtype], notes.NAMES_OF_DTYPES[autocast]
        raise Refused(f"no training has parameters of {one} under autocast to {other}\nhint: give one dtype for both, or float32 parameters")


def publish(place, path):
    """Gives a file its name, after its bytes are on the disk."""
    with open(place, "rb") as file:
        os.fsync(file.fileno())
    os.replace(place, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_program(path, format=None):
    """Whether `path` becomes a .pt2 file. `format` is "pt2", "torchscript" or None."""
    if format is None:
        return pathlib.Path(path).suffix != ".pt"
    return format == "pt2"


@contextlib.contextmanager
def staging(path):
    """A directory beside `path` for what is not complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".incomplete", dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Exporter:
    """Exports one model."""

    def __init__(self, path, options):
        self.path, self.options, self.part = pathlib.Path(path), options, ""
        self.leak = None  # What packs.leak found, in float32 if that was compared.
        self.plan_is_right = False  # Whether ranks that share weights by the plan compute what the model does.
        self.no_plan = None  # Why the file has no plan for tensor parallelism.

    def export(self, make, small=None, part=""):
        """`make` makes the Subject. If it has no values, `small` makes one that has, which is compared in its place;
        `part` says which part of the model that is, if it is not all of it."""
        self.part = part
        accel = self.program()
        with staging(self.path) as folder:
            place = folder / self.path.name
            if self.options.check and small is not None:
                subject = small()
                recorded = self.write(subject, folder / "small" / self.path.name, True)
                self.compare(subject, recorded, folder / "small" / self.path.name, accel)
                if not part:
                    self.save(recorded, subject, place, False)
                else:
                    del subject, recorded
                    gc.collect()
                    subject = make()
                    recorded = self.write(subject, place, False)
                    if self.options.is_program:
                        program.check_sizes(recorded, subject)  # That of fewer layers held for them.
            else:
                subject = make()
                recorded = self.write(subject, place, self.options.with_values)
                if self.options.check:
                    self.compare(subject, recorded, place, accel)
                    if self.leak is not None:  # The notes say what was found.
                        self.save(recorded, subject, place, self.options.with_values)
            if self.options.compile:
                self.compile(recorded, subject, place)
            if accel is not None and small is not None:  # Values aside, accel takes what is in place.
                accel_program.import_file(accel, place, folder / "imported.pt")
            publish(place, self.path)
        self.report(subject, recorded)

    def compile(self, recorded, subject, place):
        """Adds the compiled code of the layers to the file at `place`."""
        from . import check_compiled, compiled
        self.options.say(f"compiling {', '.join(subject.layers)}")
        autocast, judge = self.options.compile_autocast, None
        if self.options.check:
            judge = check_compiled.Judge(recorded.exported, subject, program.check_sizes(recorded, subject), autocast)
        description = compiled.add(recorded.exported, subject, place, judge, self.options.compile_memory, autocast)
        size = sum(sum(package["bytes"].values()) for package in description["packages"])
        self.options.say(f"compiled: {len(description['units'])} layers of {len(description['packages'])} kinds, {size / 1e6:.1f} MB, "
                         f"for torch {description['torch']}, {description['instruction_set']} and {description['dtype']}"
                         + (f" under autocast to {description['autocast']}" if autocast else ""))
        if judge is not None:
            self.options.say("checked: the compiled code gives the outputs and gradients of the layers"
                             f"{'' if judge.has_values else ' with made-up values'}: the largest difference is {judge.largest:.1g} of "
                             "the largest value")
            for path in judge.skipped:
                self.options.say(f"warning: the compiled code of '{path}' was not compared, because it draws random numbers")

    def program(self):
        """Returns the program accel if it is needed."""
        if self.options.compile and not self.options.is_program:
            raise Refused("compiled code goes into a .pt2 file, and this one is TorchScript\n"
                          "hint: choose a name for OUT that does not end in .pt")
        if self.path.is_dir():
            raise Refused(f"'{self.path}' is a directory\nhint: name the file to write, such as {self.path / 'model.pt2'}")
        if self.path.exists() and not self.options.overwrite:
            raise Refused(f"'{self.path}' exists\nhint: choose another name, or add {self.options.words.overwrite}")
        return accel_program.find(self.options.accel, self.options.words) if self.options.check and self.options.is_program else None

    def check_alone(self, make, part=""):
        """Records a model, compares it and writes nothing. What differs by less than 16 bits show is seen in float32."""
        self.part = part + " in float32"
        accel = self.program()
        with staging(self.path) as folder:
            subject = make()
            place = folder / self.path.name
            self.compare(subject, self.write(subject, place, True), place, accel)

    def write(self, subject, path, with_values):
        """Records the model and writes the file at `path`. Returns the record."""
        path.parent.mkdir(exist_ok=True)
        name = type(subject.model).__name__
        self.options.say(f"recording {name}, {number(subject.model)} parameters")
        recorded = program.record(subject) if self.options.is_program else tracing.record(subject, self.options.accept)
        if self.options.is_program:
            self.add_plan(recorded, subject)
        self.save(recorded, subject, path, with_values)
        return recorded

    def add_plan(self, recorded, subject):
        """Adds a plan for tensor parallelism, if transformers has one and it was compared. A model without values and one
        that computes in 16 bits get it after one that was compared."""
        if self.no_plan is not None:
            return
        try:
            plan = tensor_parallel.plan_for(recorded.exported, subject)
            if plan is not None and not self.plan_is_right:
                if not self.options.check:
                    raise tensor_parallel.Unsuited("it is compared with the whole model first, and the comparison was left out")
                ranks.check(recorded.exported, plan, subject, program.check_sizes(recorded, subject)[1])
                self.plan_is_right = True
            recorded.plan = plan
        except tensor_parallel.Unsuited as reason:
            self.no_plan = str(reason)

    def save(self, recorded, subject, path, with_values):
        apart = None if self.leak is None else packs.are_apart(self.leak)
        text = notes.text_of(subject, with_values, self.options.is_program, apart, getattr(recorded, "plan", None))
        if self.options.is_program:
            program.save(recorded, subject, path, text, with_values)
        else:
            tracing.save(recorded, subject, path, text, with_values)

    def compare(self, subject, recorded, path, accel):
        sets = [{name: size.checked[i] for name, size in subject.sizes.items()} for i in (0, 1)]
        if self.options.is_program:
            sets = program.check_sizes(recorded, subject)
            ones = program.sizes_of_one(recorded, subject, sets[1])
            path = accel_program.import_file(accel, path, path.with_suffix(".imported.pt"))
        elif given := [name for name, size in subject.sizes.items() if size.given]:
            sets = [{name: subject.sizes[name].recorded if name in given else size for name, size in sizes.items()} for sizes in sets]
        if not self.options.is_program:
            ones = [{**sets[1], name: 1} for name, size in subject.sizes.items() if not size.given]
        if subject.dtype != torch.float32:
            ones = []  # They were compared in float32, without the noise that a short input has in 16 bits.
        find_place = functools.partial(locate.place, recorded if self.options.is_program else None, subject)
        with check.kept_zeros(subject.model):
            worst = check.compare(subject, path, sets, not self.options.is_program, find_place, ones)
            if self.leak is None and packs.may_pack(subject):
                self.leak = packs.leak(subject, path, not self.options.is_program)
        if accel is not None:
            path.unlink()
        where = " and ".join(check.shown(sizes) for sizes in sets)
        self.options.say(f"checked: loss and gradients are the model's own{self.part}, in training and in evaluation, at {where}: "
                         f"the largest difference is {worst:.1g} of the largest value")

    def report(self, subject, recorded):
        say = self.options.say
        say("inputs: " + "; ".join(map(str, subject.inputs)) + "; outputs: " + ", ".join(subject.outputs))
        if self.options.is_program:
            try:
                say("sizes that train: " + "; ".join(program.sizes_that_train(recorded, subject)))
            except Exception as error:  # The file is written, and this is information.
                say(f"warning: the sizes that train are not known: {type(error).__name__}: {error}")
        elif given := {name: size.recorded for name, size in subject.sizes.items() if size.given}:
            say(f"sizes that train: {check.shown(given)} alone, as given")
        say(f"layers: {', '.join(subject.layers) or 'none'}")
        if left := subject.left_in_evaluation():
            others = f" and {len(left) - 5} others" if left[5:] else ""
            say(f"in evaluation mode in training, too, as in the model: {', '.join(left[:5])}{others}")
        if subject.shifts_labels is not None:
            say("labels: " + ("the model shifts them itself, so that they are the tokens" if subject.shifts_labels else
                              "the model does not shift them"))
        if self.options.is_program and recorded.plan is not None:
            say(f"tensor parallelism: transformers' plan, for numbers of ranks that divide {recorded.plan.heads}")
        if self.no_plan is not None:
            say(f"warning: the file has no plan for tensor parallelism: {self.no_plan}")
        if self.leak is not None:
            say("packs: documents in one sample do not see each other, each with position_ids from 0 on"
                if packs.are_apart(self.leak) else
                f"warning: documents in one sample see each other, even with position_ids that begin anew: the output differs by "
                f"{self.leak:.2g} of its largest value; train with packing: none")
        values = "with weights" if self.options.with_values else "the structure alone"
        say(f"{self.path}: {size_of(self.path)}, {values}")


def number(model):
    count = sum(parameter.numel() for parameter in model.parameters())
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count)


def size_of(path):
    size = path.stat().st_size
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
