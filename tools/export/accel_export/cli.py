"""The program accel-export."""

import argparse
import json
import os
import pathlib
import sys

DESCRIPTION = """Exports a model of transformers for accel, and compares the file with the model before it is written.

Without --weights the file holds the structure alone, so that a model of any size can be exported. If the
configuration of accel has `training.model.weights: MODEL_DIRECTORY`, every rank reads its own part of the original
safetensors. Parameters keep their names. `accel merge-weights CHECKPOINT OUT --copy-assets MODEL_DIRECTORY` writes a
directory that from_pretrained loads.

If transformers has a plan for tensor parallelism of the model, a .pt2 file gets it. The model is computed by several
ranks with parts of the weights, too, and compared with the whole one. If they differ, the file has no plan, and a
warning says why.

`accel-export --tokenize RECORDS --tokenizer MODEL_DIRECTORY -o OUT` writes training data; add --help to it."""


def setting(text):
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def names(text):
    return [name.strip() for name in text.split(",") if name.strip()]


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def share(text):
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError(text)
    return number


def parser():
    parser = argparse.ArgumentParser(prog="accel-export", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("directory", metavar="MODEL_DIRECTORY", help="a directory with the config.json of transformers")
    add("out", metavar="OUT", type=pathlib.Path, help="the file to write; TorchScript if its name ends in .pt")
    add("--weights", action="store_true", help="put the weights into the file")
    add("--format", choices=["pt2", "torchscript"], help="pt2 is recorded by torch.export, torchscript by tracing")
    add("--dtype", choices=["float32", "bfloat16", "float16"], default="float32",
        help="the dtype of the parameters while the model computes: with FSDP that of mixed_precision; the file's weights are float32")
    add("--class", dest="architecture", metavar="NAME", help="the model class of transformers (default: that of config.json)")
    add("--peft", metavar="CONFIG", type=pathlib.Path,
        help="add the adapter of this adapter_config.json, or of its directory; the base is frozen")
    add("--loss", action="store_true", help="forward takes labels as its last input, and gives the model's own loss")
    add("--inputs", type=names, metavar="NAMES", help="the inputs of forward, separated by commas")
    add("--outputs", type=names, metavar="NAMES",
        help="the outputs of forward (default: the first of logits and last_hidden_state, or the loss)")
    add("--length", type=positive, metavar="N", help="the one length with which you train, for models that hold for one alone")
    add("--batch", type=positive, metavar="N", help="the one batch size per process with which you train, likewise")
    add("--layers", type=names, metavar="CLASSES", help="the classes of the layers, which become units; `none` for no units")
    add("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="change a value of config.json")
    add("--accept", action="append", default=[], metavar="FILE:LINE",
        help="torchscript: accept warnings about this line, which has no effect; the end of its path is enough")
    add("--compile", action="store_true",
        help="pt2: add machine code of the layers for training on CPUs with dynamo_backend: INDUCTOR; needs g++")
    add("--compile-memory", metavar="SHARE", type=share, default=1.0,
        help="with --compile: of the activations that a layer would keep for its backward, keep at most this share, from 0 to 1, and "
             "compute the others again (default: %(default)s)")
    add("--compile-autocast", metavar="DTYPE", choices=["bfloat16", "float16"],
        help="with --compile: compile for training under autocast to bfloat16 or float16, which is mixed_precision without FSDP, or "
             "with FSDP version 1 if --dtype is the same")
    add("--accel", metavar="PROGRAM", help="the program accel (default: that in PATH)")
    add("--overwrite", action="store_true", help="replace OUT if it exists")
    add("--no-check", dest="check", action="store_false", help="do not compare with the model's own loss and gradients")
    return parser


class Failed(SystemExit):
    """Ends the program with exit code 2, that of wrong usage. Its text is the message."""

    def __init__(self, text):
        super().__init__(text)
        self.code = 2


def fail(text):
    print(f"accel-export: {text}", file=sys.stderr)
    raise Failed(text)


def require_paths(options):
    """Transformers and PEFT take a path that does not exist for the name of a model on a hub."""
    given = options.directory
    if not os.path.exists(given):
        fail(f"'{given}' does not exist\nhint: MODEL_DIRECTORY is a directory of this machine; get a model of a hub first, with "
             f"`hf download NAME --local-dir DIRECTORY`")
    if not os.path.isdir(given):
        fail(f"'{given}' is not a directory\nhint: name the directory that has the model's config.json")
    if options.peft and not options.peft.exists():
        fail(f"--peft: '{options.peft}' does not exist\nhint: name an adapter_config.json, or the directory that has it")


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--tokenize" in arguments:
        from . import tokenizing
        return tokenizing.main(arguments)
    options = parser().parse_args(arguments)
    require_paths(options)
    try:  # Parsing is quick, and these imports are not.
        import torch
        from . import exporter, huggingface
        from .refused import Refused
    except ImportError as error:
        fail(f"the package {error.name} cannot be imported: {error}\nhint: pip install torch transformers")
    options.dtype = getattr(torch, options.dtype)
    autocast = options.compile_autocast and getattr(torch, options.compile_autocast)
    options.is_program = exporter.is_program(options.out, options.format)
    try:
        settings = exporter.Options(options.is_program, options.weights, options.accel, options.check, tuple(options.accept),
                                    lambda text: print(text, flush=True), options.overwrite,
                                    compile=options.compile, compile_memory=options.compile_memory, compile_autocast=autocast)
        exporter.refuse_contradictions(settings, options.dtype)
        directory = huggingface.Directory(options.directory, options)
        export = exporter.Exporter(options.out, settings)
        part = "" if options.weights else directory.part()
        if options.check and options.dtype != torch.float32:
            plain = directory.in_float32()
            export.check_alone(plain.with_weights if options.weights else plain.with_random_values, part)
        if options.weights:
            export.export(directory.with_weights)
        else:
            export.export(directory.without_values, directory.with_random_values, part)
    except Refused as refused:
        fail(f"{options.directory}: {refused}")
    except OSError as error:  # Of the file to write: what libraries raise while they read is Refused.
        place = f"'{error.filename}': " if error.filename is not None else ""
        fail(f"{options.out} cannot be written: {place}{error.strerror or error}\nhint: choose another place for OUT")


if __name__ == "__main__":
    main()
