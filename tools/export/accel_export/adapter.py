"""Adapters of PEFT on a model of transformers. The base is frozen, and the names are PEFT's."""

import json
import pathlib
import sys
import tempfile

import torch

from .refused import Refused, named


def add(model, path):
    """Returns the model with the adapter of a directory, or of the adapter_config.json at `path`. The adapter has the
    values of the directory's adapter_model.safetensors, or those with which PEFT begins if the directory has no values."""
    try:
        import peft
    except ImportError:
        raise Refused("--peft needs the package peft\nhint: pip install peft") from None
    path = pathlib.Path(path)
    directory = path.parent if path.is_file() else path
    if not (directory / "adapter_config.json").exists():  # PEFT would ask a hub.
        raise Refused(f"--peft: '{directory / 'adapter_config.json'}' does not exist\n"
                      "hint: name the directory or the adapter_config.json that PEFT's save_pretrained wrote")
    with named(f"--peft: reading the adapter_config.json of '{directory}'", None, lambda error: "PEFT has to read it"):
        config = peft.PeftConfig.from_pretrained(str(directory))
    if (directory / "adapter_model.bin").exists() and not (directory / "adapter_model.safetensors").exists():
        raise Refused(f"'{directory}' has the adapter's values as a pickle, adapter_model.bin\n"
                      "hint: load it with PEFT and save it with save_pretrained, which writes adapter_model.safetensors")
    config.inference_mode = False
    torch.manual_seed(0)
    hint = f"the adapter has to be one for {type(model).__name__}; see target_modules in its adapter_config.json"
    with named(f"--peft: adding the adapter of '{directory}'", None, lambda error: hint):
        adapted = peft.get_peft_model(model, config)
        if (directory / "adapter_model.safetensors").exists():
            loaded = adapted.load_adapter(str(directory), "default", is_trainable=True)
            if wrong := [*loaded.missing_keys, *loaded.unexpected_keys]:
                raise Refused(f"the adapter of '{directory}' does not fit {type(model).__name__}: of its tensors and those that the "
                              f"model wants, {len(wrong)} are on one side alone, the first is '{wrong[0]}'")
    if not any(parameter.requires_grad for parameter in adapted.parameters()):
        raise Refused(f"the adapter of '{directory}' trains no parameter of {type(model).__name__}")
    return adapted


def config_of(model):
    """Returns what PEFT's save_pretrained writes into adapter_config.json, as a dict. None if `model` is not a PeftModel
    whose adapter has the default name, the only one that accel trains."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel) or "default" not in model.peft_config:
        return None
    config = model.peft_config["default"]
    inference_mode, config.inference_mode = config.inference_mode, True
    base = type(model.get_base_model())
    mapping = {"base_model_class": base.__name__, "parent_library": base.__module__} if config.task_type is None else None
    try:
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder, auto_mapping_dict=mapping)
            return json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
    finally:
        config.inference_mode = inference_mode
