"""Adapters of PEFT on a model of transformers. The base is frozen, and the names are PEFT's."""

import json
import pathlib
import sys
import tempfile
import warnings

import torch

from .refused import Refused, quiet


def add(model, path):
    """Returns the model with the adapter of a directory, or of the adapter_config.json at `path`. The adapter has the
    values of the directory's adapter_model.safetensors, or those with which PEFT begins if the directory has no values."""
    try:
        import peft
    except ImportError:
        raise Refused("--peft needs the package peft\nhint: pip install peft") from None
    path = pathlib.Path(path)
    directory = path.parent if path.is_file() else path
    try:
        config = peft.PeftConfig.from_pretrained(str(directory))
    except (OSError, ValueError) as error:
        raise Refused(f"'{directory}' has no adapter_config.json that PEFT reads: {str(error).splitlines()[0]}") from None
    if (directory / "adapter_model.bin").exists() and not (directory / "adapter_model.safetensors").exists():
        raise Refused(f"'{directory}' has the adapter's values as a pickle, adapter_model.bin\n"
                      "hint: load it with PEFT and save it with save_pretrained, which writes adapter_model.safetensors")
    config.inference_mode = False
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
