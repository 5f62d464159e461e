"""`accel check --schema`: the schema takes the configurations that accel takes, and refuses the mistakes that it refuses."""

import json
import pathlib
import shutil
import subprocess

import jsonschema
import pytest
import yaml

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
CONFIGS = sorted([*(ROOT / "configs").glob("*.yaml"), *(HERE / "inputs").glob("*good*.yaml"),
                  *(HERE / "inputs").glob("*by_accelerate*.yaml")])

# Values that the type, the range or the choices of a key exclude, and the text of accel's error.
WRONG = [
    ("max_stepz", 5, "unknown key"),
    ("fsdp_config.fsdp_verson", 2, "unknown key"),
    ("training.data.train.formt", "text", "unknown key"),
    ("mixed_precision", "bf61", "must be one of"),
    ("fsdp_config.fsdp_version", 3, "must be one of"),
    ("fsdp_config.auto_wrap_policy", "WRAP_ALL", "must be one of"),
    ("training.optimizer.type", "adamm", "must be one of"),
    ("main_process_port", 65536, "must be less than"),
    ("num_machines", 0, "must be at least"),
    ("launch.timeout", 2000000.5, "must be at most"),
    ("training.max_grad_norm", 0, "must be greater than"),
    ("training.optimizer.betas", [0.9, 1.0], "must be less than"),
    ("use_cpu", 3, "must be true or false"),
    ("use_cpu", "maybe", "must be true or false"),
    ("num_processes", "two", "must be an integer"),
    ("num_processes", 1.5, "must be an integer"),
    ("num_processes", "2", "must be an integer"),
    ("training.model.inputs", [None], "must be a list of strings"),
    ("training.optimizer.betas", 0.9, "must be a list of numbers"),
    ("training.optimizer.lr", "fast", "must be a number"),
    ("training.model.rename", ["a"], "must be a section of texts"),
    ("training.model", "gpt.pt", "must be a section of keys"),
    ("main_process_ip", ["a"], "must be a string"),
]

# Values that the engine may refuse later, such as for another value beside them, but whose form is right.
RIGHT = [
    ("fsdp_config.fsdp_version", 2),
    ("fsdp_config.version", 2),
    ("fsdp_config.reshard_after_forward", False),
    ("fsdp_config.sharding_strategy", "FULL_SHARD"),
    ("fsdp_config.sharding_strategy", 1),
    ("use_cpu", "yes"),
    ("gpu_ids", "all"),
    ("gpu_ids", 0),
    ("gpu_ids", [0, 1]),
    ("training.model.output", 0),
    ("training.model.rename", {"^a": None, "b": "c"}),
    ("training.max_grad_norm", None),
    ("training.checkpoint", None),
    ("training.checkpoint.every", "continuous"),
    ("deepspeed_config.zero_stage", {"any": ["thing"]}),
]


@pytest.fixture(scope="module")
def schema(accel_path):
    result = subprocess.run([accel_path, "check", "--schema"], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    document = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(document)
    return document


@pytest.fixture(scope="module")
def validator(schema):
    return jsonschema.Draft202012Validator(schema)


def document_with(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def errors_of(validator, document):
    return [error.message for error in validator.iter_errors(document)]


@pytest.fixture
def check(accel, tmp_path):
    """check(PATH, VALUE) returns accel's error for good.yaml with this value, or an empty string."""
    work = tmp_path / "work"
    shutil.copytree(HERE / "inputs", work)

    def checked(path, value):
        result = accel("check", "good.yaml", "--set", f"{path}={json.dumps(value)}", code=None, cwd=work,
                       env={"CUDA_VISIBLE_DEVICES": ""})
        assert result.returncode in (0, 2)
        return result.stderr if result.returncode else ""

    return checked


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_the_schema_takes_a_configuration_that_works(validator, config):
    assert errors_of(validator, yaml.safe_load(config.read_text())) == []


def test_all_configurations_are_seen():
    assert len(CONFIGS) >= 9


@pytest.mark.parametrize("path, value, text", WRONG, ids=[f"{path}={value}" for path, value, _ in WRONG])
def test_the_schema_and_accel_refuse_a_mistake(validator, check, path, value, text):
    assert errors_of(validator, document_with(path, value))
    assert text in check(path, value)


@pytest.mark.parametrize("path, value", RIGHT, ids=[f"{path}={value}" for path, value in RIGHT])
def test_the_schema_and_accel_take_a_value_of_the_right_form(validator, check, path, value):
    assert errors_of(validator, document_with(path, value)) == []
    error = check(path, value)
    assert "unknown key" not in error and "must be one of" not in error and "found" not in error, error


def choices_in(schema, path=""):
    for name, value in schema.get("properties", {}).items():
        longer = f"{path}.{name}" if path else name
        if "enum" in value:
            yield longer, [choice for choice in value["enum"] if choice is not None]
        yield from choices_in(value, longer)


def test_the_schema_and_accel_take_every_choice_and_no_other(schema, validator, check):
    fields = list(choices_in(schema))
    assert len(fields) >= 20
    for path, choices in fields:
        for choice in choices:
            assert errors_of(validator, document_with(path, choice)) == [], path
            assert "must be one of" not in check(path, choice)
        assert errors_of(validator, document_with(path, "zzz")), path
        # A number is not read as text.
        wrong = 77 if isinstance(choices[0], int) else "zzz"
        assert "must be one of" in check(path, wrong), path


def test_an_optional_prefix_is_another_name(schema):
    keys = schema["properties"]["fsdp_config"]["properties"]
    assert {"version", "fsdp_version"} <= keys.keys()
    assert {name for name in keys if not name.startswith("fsdp_")} == {
        name.removeprefix("fsdp_") for name in keys if name.startswith("fsdp_")}
