"""Every kind of configuration file that accelerate writes, made by accelerate itself: by the questions of `accelerate
config` with answers, by its classes where no question leads to a key, and by its other commands."""

import argparse
import contextlib
import dataclasses
import os
import unittest.mock

import accelerate.commands.launch
import accelerate.utils.launch
import pytest
import yaml
from accelerate.commands import to_fsdp2
from accelerate.commands.config import cluster, config_utils, default, sagemaker, update
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import ComputeEnvironment, DistributedType

# The positions of the answers to "Which type of machine are you using?".
MACHINES = ["no", "cpu", "xpu", "hpu", "gpu", "npu", "mlu", "sdaa", "musa", "neuron", "tpu"]
PRECISIONS = ["no", "fp16", "bf16", "fp8"]


class Answers:
    """Answers questions by a part of their text, the longest that fits, and all others with their default."""

    def __init__(self, answers):
        self.answers = answers
        self.used = set()

    def find(self, question):
        parts = [part for part in self.answers if part in question]
        if not parts:
            return None
        self.used.add(max(parts, key=len))
        return self.answers[max(parts, key=len)]

    def text(self, question):
        answer = self.find(question)
        # Without an answer a question that has no default is asked forever.
        if answer is None and not question.rstrip(": ").endswith("]"):
            pytest.fail(f"no answer to '{question}'")
        return "" if answer is None else str(answer)

    def menu(self, question, options):
        def run(default_choice=0):
            answer = self.find(question)
            if answer is None:
                return default_choice
            return answer if isinstance(answer, int) else [str(option) for option in options].index(answer)

        return unittest.mock.Mock(run=run)


@contextlib.contextmanager
def answered(answers):
    """Answers the questions of `accelerate config`, on a machine that seems to have every package that it asks for."""
    given = Answers(answers)
    packages = ["deepspeed", "fp8", "msamp", "torchao", "transformer_engine", "transformers"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch("builtins.input", given.text))
        stack.enter_context(unittest.mock.patch.object(config_utils, "BulletMenu", given.menu))
        stack.enter_context(unittest.mock.patch.dict(os.environ))
        for package in packages:
            stack.enter_context(unittest.mock.patch.object(cluster, f"is_{package}_available", lambda: True))
        yield
    assert given.used == set(answers), f"not asked: {set(answers) - given.used}"


def asked(machine, precision="no", answers=None):
    """Makes the file that the questions lead to. A key of `answers` is a part of a question."""
    given = {"Which type of machine": MACHINES.index(machine), **(answers or {})}
    if precision != "no":
        given["mixed precision?"] = PRECISIONS.index(precision)

    def make(path):
        with answered(given):
            cluster.get_cluster_input().to_yaml_file(path)

    return make


def fsdp(version, answers=None, processes=2, precision="no", wraps_layers=True):
    """The file of an FSDP run on GPUs."""
    given = {"FullyShardedDataParallel": "yes", "FSDP version": version - 1, "How many GPU": processes, **(answers or {})}
    if wraps_layers:
        given["_no_split_modules"] = "yes"
    return asked("gpu", precision, given)


def cluster_file(**keys):
    """The file of ClusterConfig itself."""

    def make(path):
        required = {"compute_environment": ComputeEnvironment.LOCAL_MACHINE, "distributed_type": DistributedType.NO,
                    "mixed_precision": "no", "use_cpu": False, "debug": False, "num_processes": 1}
        ClusterConfig(**{**required, **keys}).to_yaml_file(path)

    return make


def sagemaker_file(answers=None):
    given = {"AWS Profile name": "me", "IAM role name": "role", **(answers or {})}

    def make(path):
        with answered(given):
            sagemaker.get_sagemaker_input().to_yaml_file(path)

    return make


def basic(precision):
    """The file of write_basic_config, which is JSON."""

    def make(path):
        with unittest.mock.patch("torch.cuda.is_available", lambda: False):
            assert default.write_basic_config(precision, str(path))

    return make


def text(document):
    """A file of an older accelerate, as it is."""
    return lambda path: path.write_text(yaml.safe_dump(document))


def updated(document):
    """What `accelerate config update` makes of an older file."""

    def make(path):
        path.write_text(yaml.safe_dump(document))
        update.update_config(argparse.Namespace(config_file=str(path)))

    return make


def converted(make_first):
    """What `accelerate to-fsdp2` makes of a file."""

    def make(path):
        make_first(path)
        to_fsdp2.to_fsdp2_command(argparse.Namespace(config_file=str(path), output_file=None, overwrite=True))

    return make


VARIABLES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


def without_variables():
    return {name: value for name, value in os.environ.items() if not name.startswith((*VARIABLES, "SLURM_"))}


def variables_for_script(file):
    """The variables by which `accelerate launch` passes the settings of the file to a script; None if it refuses it."""
    try:
        return launch_of(file)[1]
    except ValueError:
        return None


def launch_of(file, *flags):
    """How many processes `accelerate launch` starts with the file, and the variables by which it passes the settings on."""
    arguments = launch_command_parser().parse_args(["--config_file", str(file), *flags, "script.py"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.dict(os.environ, without_variables(), clear=True))
        stack.enter_context(unittest.mock.patch.object(accelerate.commands.launch, "is_bf16_available", lambda *_: True))
        stack.enter_context(unittest.mock.patch.object(accelerate.utils.launch, "is_fp8_available", lambda: True))
        arguments, _, _ = accelerate.commands.launch._validate_launch_command(arguments)
        if arguments.use_fsdp or arguments.multi_gpu:
            return arguments.num_processes, meaning_of(accelerate.utils.launch.prepare_multi_gpu_env(arguments))
        return 1, meaning_of(accelerate.utils.launch.prepare_simple_launcher_cmd_env(arguments)[1])


def meaning_of(variables):
    """The variables of accelerate, without what only spells one meaning in two ways."""
    return {name: value.lower() for name, value in variables.items()
            if name.startswith(VARIABLES) and (name, value) != ("ACCELERATE_USE_CPU", "False")}


def launch_flags(title):
    """The names of the flags of `accelerate launch` in one of its groups, which are the keys of a section."""
    group = next(group for group in launch_command_parser()._action_groups if group.title == title)
    return [action.dest for action in group._group_actions]


def keys_of_classes():
    """The keys of the top level."""
    return sorted({field.name for cls in (ClusterConfig, SageMakerConfig) for field in dataclasses.fields(cls)})
