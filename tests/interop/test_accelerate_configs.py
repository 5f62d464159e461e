"""Every kind of file that accelerate writes is accepted, or refused with a message that names the key and says why.

Each file is made by accelerate itself. It is given to `accel launch FILE -- env`, which hands it on to a program, and, with
a section `training`, to `accel plan`, which resolves it as a training does. ACCEL_ACCELERATE_CONFIGS=PATH writes the table
docs/accelerate-configs.md (`tools/dev accelerate-configs`); without it each test compares its row with the committed one.
"""

import json
import os
import pathlib
import re
import subprocess

import accelerate.state
import accelerate_files
import ports
import pytest
import torch
import train_runs
from accelerate.utils import DistributedType, DynamoBackend, PrecisionType
from accelerate_cases import CASES

PAGE = train_runs.ROOT / "docs/accelerate-configs.md"
WRITES = os.environ.get("ACCEL_ACCELERATE_CONFIGS")
ROWS: dict[str, str] = {}
HEAD = """# The configuration files of accelerate

`tools/dev accelerate-configs` writes this table. Its files are made by accelerate 1.15: by the
questions of `accelerate config`, by its classes and by its other commands.

- **a program**: `accel launch FILE -- PROGRAM`, which passes the settings on in the environment.
- **a training**: the file with a section `training`, which accel trains by itself.

A key that belongs to another system is known by name and is no error while nothing asks for that
system. `same_network`, `main_training_function` and `downcast_bf16` have no effect, and `debug` is
for programs. A test also compares the variables that a program gets with those of `accelerate
launch`.

| file | a program | a training |
| --- | --- | --- |
"""


@pytest.fixture(scope="module", autouse=True)
def table():
    yield
    if WRITES:
        pathlib.Path(WRITES).write_text(HEAD + "".join(f"{ROWS[name]}\n" for name in CASES))


@pytest.fixture
def run(accel_path, tmp_path):
    """run(COMMAND...) starts accel without GPUs, in the background."""

    def begin(*command):
        return subprocess.Popen([accel_path, *map(str, command)], cwd=tmp_path, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**accelerate_files.without_variables(), "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""})

    return begin


@pytest.fixture
def free_port():
    with ports.held_port() as port:
        yield port


def finished(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def as_program(run, file, machines):
    """Runs `env` with the file on each machine. Returns the outcome of machine 0."""
    more = [] if machines > 1 else ["--main-process-port", 0]
    all_of_them = [run("launch", file, *more, *(["--machine-rank", rank] if machines > 1 else []), "--", "env")
                   for rank in range(machines)]
    outcomes = [finished(process) for process in all_of_them]
    assert len({code for code, _, _ in outcomes}) == 1, outcomes
    return outcomes[0]


def as_training(run, file, directory, keys):
    values = {"model.path": directory / "gpt.pt", "data.train.format": "text", "data.train.path": train_runs.TEXT,
              "data.train.sequence_length": 32, "max_steps": 1, **keys}
    return finished(run("--json", "plan", file, *(word for key, value in values.items()
                                                  for word in ("--set", f"training.{key}={value}"))))


def messages(err, kind):
    """The messages of that kind, without the place in the file."""
    lines = re.findall(rf"^accel: {kind}: (.*)$", err, re.MULTILINE)
    return [re.sub(r"^\S+:\d+:\d+: ", "", line) for line in lines]


def check(outcome, why):
    """Compares an outcome with what is expected. Returns what the table says about it."""
    code, _, err = outcome
    assert "unknown key" not in err
    if why is None:
        assert code == 0, err
        # That this machine has no GPU is not of the file.
        warnings = [line for line in messages(err, "warning") if not line.startswith("on CPUs ")]
        return "; ".join(["accepted", *(f"warning: {line}" for line in warnings)])
    # With --json an error is a document.
    said = [json.loads(err.splitlines()[-1])["message"]] if err.startswith("{") else messages(err, "error")
    said = [re.sub(r"^\S+:\d+:\d+: ", "", line) for line in said]
    assert code == 2 and len(said) == 1 and why in said[0], err
    return f"refused: {said[0]}"


def require_equal_variables(output, theirs, differs):
    """The variables that `env` printed are those of accelerate, but for those in `differs`."""
    assert (theirs is None) == (differs is None)
    ours = accelerate_files.meaning_of(dict(line.split("=", 1) for line in output.splitlines() if "=" in line))
    assert ours["ACCELERATE_MIXED_PRECISION"]
    if theirs is not None:
        assert {name for name in ours | theirs if ours.get(name) != theirs.get(name)} == differs


@pytest.fixture(scope="module")
def model(made_once):
    return made_once("accelerate-configs-model", lambda directory: train_runs.export(directory / "gpt.pt"))


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_accepted_or_refused_with_a_reason(run, model, tmp_path, free_port, monkeypatch, name):
    case = CASES[name]
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "default_config.yaml"
    case.make(file)
    file.write_text(file.read_text().replace("main_process_port: 1\n", f"main_process_port: {free_port}\n"))

    program = as_program(run, file, case.machines)
    training = as_training(run, file, model, case.training_keys)
    cells = [check(program, case.program), check(training, case.training)]
    if case.program is None:
        require_equal_variables(program[1], accelerate_files.variables_for_script(file), case.differs)
    if case.warning:
        assert case.warning in cells[1]
    if case.training is None:
        document = json.loads(training[1])
        found = {**document, **document["plans"][0]}
        assert {key: found[key] for key in case.plan} == case.plan
    else:
        assert not case.plan and not case.warning, "a refused file has no plan"
    row = f"| {name} | {cells[0]} | {cells[1]} |".replace(f"{tmp_path}/", "")
    ROWS[name] = row
    if not WRITES:
        assert row in PAGE.read_text().splitlines()


@pytest.mark.skipif(bool(WRITES), reason="the table is being written")
def test_the_table_has_no_other_rows():
    lines = PAGE.read_text().splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert names == ["file", "---", *CASES]
    assert PAGE.read_text().startswith(HEAD)


SECTIONS = {"fsdp_config": "FSDP Arguments", "deepspeed_config": "DeepSpeed Arguments", "fp8_config": "FP8 Arguments",
            "megatron_lm_config": "Megatron-LM Arguments", "parallelism_config": "ParallelismConfig Arguments"}


def test_every_key_of_accelerate_is_known(run, tmp_path):
    """A null asks for the default."""
    document = {key: None for key in accelerate_files.keys_of_classes()}
    for section, title in SECTIONS.items():
        keys = accelerate_files.launch_flags(title)
        assert keys, title
        document[section] = {key: None for key in keys}
    file = tmp_path / "all.yaml"
    file.write_text(json.dumps(document))
    code, _, err = finished(run("launch", file, "--main-process-port", 0, "--", "true"))
    assert code == 0, err
    # The same file shows that an unknown key is found.
    document["fsdp_config"]["fsdp_no_such_key"] = None
    file.write_text(json.dumps(document))
    code, _, err = finished(run("launch", file, "--", "true"))
    assert code == 2 and "unknown key 'fsdp_no_such_key'" in err


# A value of each flag, none for one that takes no value.
FP8_FLAGS = {"fp8_backend": "ao", "fp8_use_autocast_during_eval": None, "fp8_margin": "3", "fp8_interval": "2", "fp8_format": "E4M3",
             "fp8_amax_history_len": "16", "fp8_amax_compute_algo": "max", "fp8_override_linear_precision": "true,false,true",
             "fp8_opt_level": "O1", "fp8_enable_fsdp_float8_all_gather": "false", "fp8_pad_inner_dim": "false"}


def words_of(flag):
    return [f"--{flag}"] if FP8_FLAGS[flag] is None else [f"--{flag}", FP8_FLAGS[flag]]


def test_the_flags_of_float8_are_those_of_accelerate():
    assert sorted(FP8_FLAGS) == sorted(accelerate_files.launch_flags("FP8 Arguments"))


@pytest.mark.parametrize("flags", [[flag] for flag in FP8_FLAGS] + [list(FP8_FLAGS)], ids=lambda flags: "+".join(flags)[:40])
def test_a_program_gets_what_the_flags_of_float8_say(run, tmp_path, monkeypatch, flags):
    """A flag wins over the file, and each changes a variable."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "run.yaml"
    in_file = {"backend": "MSAMP", "margin": 7, "pad_inner_dim": True}
    accelerate_files.cluster_file(use_cpu=True, num_processes=1, mixed_precision="fp8", fp8_config=in_file)(file)
    words = [word for flag in flags for word in words_of(flag)]
    theirs = [accelerate_files.launch_of(file, *given)[1] for given in ([], words)]
    assert theirs[0] != theirs[1]
    code, out, err = finished(run("launch", file, *words, "--main-process-port", 0, "--", "env"))
    assert code == 0, err
    # A flag of a truth value becomes a number in Accelerate, and a value of a file a word.
    for name in [name for name in theirs[1] if "_OVERRIDE_" in name or name.endswith(("_ALL_GATHER", "_INNER_DIM"))]:
        theirs[1][name] = {"0": "false", "1": "true"}.get(theirs[1][name], theirs[1][name])
        out = out.replace(f"{name}=0", f"{name}=false").replace(f"{name}=1", f"{name}=true")
    require_equal_variables(out, theirs[1], set())


def test_flags_of_float8_in_a_training(run, model, tmp_path):
    """Those of other backends have no effect, and the backends are refused with AO as the way."""
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({"use_cpu": True, "distributed_type": "NO", "mixed_precision": "fp8", "training": {
        "model": {"path": str(model / "gpt.pt")}, "max_steps": 1, "output_dir": str(tmp_path / "out"),
        "data": {"train": {"format": "text", "path": str(train_runs.TEXT), "sequence_length": 32}}}}))
    words = [word for flag in FP8_FLAGS for word in words_of(flag)]
    code, out, err = finished(run("check", file, *words))
    assert code == 0, err
    without_effect = [line for line in (out + err).splitlines() if "' has no effect: " in line]
    for flag in FP8_FLAGS:
        named = any(f"'fp8_config.{flag.removeprefix('fp8_')}' has no effect" in line for line in without_effect)
        assert named == (flag not in ("fp8_backend", "fp8_enable_fsdp_float8_all_gather")), (flag, without_effect)
    for backend, library in (("te", "Transformer Engine"), ("msamp", "MS-AMP")):
        code, _, err = finished(run("check", file, "--fp8_backend", backend))
        assert code == 2 and f"asks for {library}, which accel does not have" in err and "hint: what works: AO" in err


@pytest.mark.parametrize("key, values", [
    ("distributed_type", [value.value for value in DistributedType]),
    ("mixed_precision", [value.value for value in PrecisionType]),
    ("dynamo_backend", [value.value for value in DynamoBackend]),
])
def test_every_value_of_accelerate_is_known(run, tmp_path, key, values):
    assert values
    for value in values:
        file = tmp_path / f"{value}.yaml"
        file.write_text(json.dumps({"num_processes": 1, "use_cpu": True, key: value}))
        code, _, err = finished(run("launch", file, "--main-process-port", 0, "--", "true"))
        assert code == 0 or (code == 2 and f"'{key}: {value}' asks for " in err), err


@pytest.mark.parametrize("name", ["xpu", "npu", "mlu", "musa", "sdaa", "hpu", "neuron"])
def test_the_refusal_of_an_accelerator_names_the_backend_that_accelerate_uses(run, tmp_path, monkeypatch, name):
    for other in ("mlu", "sdaa", "musa", "npu", "hpu", "xpu", "neuron"):
        monkeypatch.setattr(accelerate.state, f"is_{other}_available", lambda is_there=other == name, **_: is_there)
    monkeypatch.setattr(accelerate.state, "is_xccl_available", lambda: name == "xpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    backend, kind = accelerate.state.PartialState._prepare_backend(None)
    assert kind == f"MULTI_{name.upper()}"
    (tmp_path / "run.yaml").write_text(f"distributed_type: {kind.value}\n")
    code, _, err = finished(run("launch", "run.yaml", "--", "env"))
    assert code == 2 and f"c10d's backend {backend} (" in err
