"""Losses, gradients and buffers of sharded models equal those of the same models in eager Python."""

import copy
import json
import warnings

import pytest
import torch

import zoo_models

pytestmark = pytest.mark.long

RANKS = 2
MODELS = zoo_models.models()
VARIANTS = {
    "plain": {"reshard": True, "recompute": False},
    "second step": {"reshard": True, "recompute": False, "steps": 2},
    "nothing ahead": {"reshard": True, "recompute": False, "steps": 2, "prefetch": False},
    "second step, checkpointing": {"reshard": True, "recompute": True, "steps": 2},
    "no reshard": {"reshard": False, "recompute": False},
    "checkpointing": {"reshard": True, "recompute": True},
}


# Three units: the root, the unit that runs, and the prefetched unit or the unit that backward comes from.
MOST_UNSHARDED = {"nothing ahead": 3, "second step": 3, "second step, checkpointing": 3}
NESTED = {"awkward", "awkward, nothing in place", "Qwen3", "ResNet"}


def python_gradients(model, inputs):
    """Returns the loss and buffers of rank 0, and the mean of all ranks' gradients."""
    total = {}
    first = None
    for rank_inputs in inputs:
        own = copy.deepcopy(model)
        loss = own(*rank_inputs)
        loss.backward()
        first = first or {"loss": loss.detach(), **{f"buffer/{name}": b for name, b in own.named_buffers()}}
        for name, parameter in own.named_parameters():
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                total[f"gradient/{name}"] = total.get(f"gradient/{name}", 0) + gradient / len(inputs)
    return {**first, **total}


def run_tool(accel, accel_path, tmp_path, cases, code=0):
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    config = tmp_path / "launch.yaml"
    config.write_text(f"distributed_type: FSDP\nuse_cpu: true\nnum_processes: {RANKS}\nmain_process_port: 0\n")
    return accel("launch", config, "--", accel_path.parents[2] / "tests/unit/train/model-step-tool",
                 tmp_path / "cases.json", code=code)


def case(tmp_path, name, zoo, variant):
    return {"model": str(tmp_path / "model.pt"), "inputs": str(tmp_path / "inputs{rank}.pt"),
            "out": str(tmp_path / f"{name}.out"), "classes": zoo.classes, **variant}


def write_model(tmp_path, zoo, training=True):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = zoo.make().train(training)
        inputs = [zoo.inputs() for _ in range(RANKS)]
        zoo_models.export(zoo, model, tmp_path / "model.pt")
    for rank, tensors in enumerate(inputs):
        torch.jit.script(zoo_models.Inputs(tensors)).save(str(tmp_path / f"inputs{rank}.pt"))
    return model, inputs


@pytest.mark.parametrize("name", MODELS)
def test_sharded_equals_eager(accel, accel_path, tmp_path, name):
    zoo = MODELS[name]
    model, inputs = write_model(tmp_path, zoo)
    variants = {key: value for key, value in VARIANTS.items()
                if not (value["recompute"] and "UnitInPlace" in zoo.classes)}
    run_tool(accel, accel_path, tmp_path, [case(tmp_path, key, zoo, value) for key, value in variants.items()])
    expected = python_gradients(model, inputs)
    persistent = {f"buffer/{key}" for key in model.state_dict()}
    for variant in variants:
        # weights_only refuses a type that pickle_save names.
        found = torch.load(tmp_path / f"{variant}.out", weights_only=False)
        for key, value in expected.items():
            if key.startswith("buffer/") and (key not in persistent or "steps" in VARIANTS[variant]):
                found.pop(key, None)  # Each step changes the statistics.
                continue
            torch.testing.assert_close(found.pop(key), value, rtol=1e-4, atol=1e-6, msg=lambda m: f"{variant}: {key}: {m}")
        most = found.pop("most_unsharded").item()
        # The first forward records the order of the units, so the second forward and every backward prefetch.
        ahead = found.pop("gathered_ahead").item()
        if name in NESTED:  # NESTED models do not always run backward in the reverse order of forward.
            assert ahead == 0 or VARIANTS[variant].get("prefetch", True)
        else:
            assert (ahead > 0) == (VARIANTS[variant].get("prefetch", True) and VARIANTS[variant]["reshard"])
        assert not found, variant
        if variant in MOST_UNSHARDED and name not in NESTED:
            assert most == MOST_UNSHARDED[variant]


@pytest.mark.parametrize("traced_in_training", [True, False])
@pytest.mark.parametrize("name", ["BERT with dropout", "ResNet"])
def test_a_traced_model_trains_and_evaluates(accel, accel_path, tmp_path, name, traced_in_training):
    """Tracing writes the mode into the graph. Whichever it is, only the evaluation loss equals that of eval()."""
    zoo = {**MODELS, "BERT with dropout": zoo_models.bert(dropout=0.3)}[name]
    model, inputs = write_model(tmp_path, zoo, traced_in_training)
    cases = [{**case(tmp_path, key, zoo, VARIANTS["plain"]), "training": training}
             for key, training in (("evaluation", False), ("training", True))]
    run_tool(accel, accel_path, tmp_path, cases)
    expected = copy.deepcopy(model).eval()(*inputs[0]).detach()
    assert not torch.isclose(expected, model.train()(*inputs[0]), rtol=1e-4)
    found = {key: torch.load(tmp_path / f"{key}.out", weights_only=False) for key in ("evaluation", "training")}
    torch.testing.assert_close(found["evaluation"]["loss"], expected, rtol=1e-5, atol=1e-6)
    assert not torch.isclose(found["training"]["loss"], expected, rtol=1e-4)


def test_checkpointing_a_unit_that_changes_its_argument_is_refused(accel, accel_path, tmp_path):
    zoo = MODELS["awkward"]
    write_model(tmp_path, zoo)
    result = run_tool(accel, accel_path, tmp_path, [case(tmp_path, "out", zoo, VARIANTS["checkpointing"])], code=None)
    assert result.returncode != 0
    assert "activation checkpointing: 'in_place' changes one of its arguments in place" in result.stderr
