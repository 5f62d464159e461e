"""`accel diff` on files of torch and safetensors agrees with torch."""

import json
import pathlib
import re
import subprocess

import ckpt_peers
import numpy
import pytest
import safetensors.torch
import torch
from ckpt_peers import expected_state, tensor_of


def found(accel, *arguments, code):
    return json.loads(accel("--json", "diff", *arguments, code=code).stdout)


def files(tmp_path, a, b):
    safetensors.torch.save_file(a, tmp_path / "a.safetensors")
    safetensors.torch.save_file(b, tmp_path / "b.safetensors")
    return tmp_path / "a.safetensors", tmp_path / "b.safetensors"


@pytest.mark.parametrize("kind", [kind for kind in ckpt_peers.KINDS if not kind.startswith("net")])
def test_a_sharded_checkpoint_and_what_it_was_made_from(accel, torch_checkpoints, tmp_path, kind):
    state = {name: tensor.contiguous() for name, tensor in expected_state(kind).items()}
    safetensors.torch.save_file(state, tmp_path / "same.safetensors")
    torch.save(state, tmp_path / "same.bin")
    for other in ("same.safetensors", "same.bin"):
        result = found(accel, torch_checkpoints / kind, tmp_path / other, code=0)
        assert result["same"] and result["compared_tensors"] == len(state)
    changed = dict(state)
    name, tensor = next((n, t) for n, t in state.items() if t.dtype == torch.float32 and t.numel() > 4)
    changed[name] = tensor.clone()
    changed[name].view(-1)[3] += 1
    safetensors.torch.save_file(changed, tmp_path / "changed.safetensors")
    result = found(accel, torch_checkpoints / kind, tmp_path / "changed.safetensors", code=3)
    assert [entry["name"] for entry in result["tensors"]] == [name]
    assert result["tensors"][0]["different"] == 1
    assert torch.zeros(tensor.shape)[tuple(result["tensors"][0]["first"])] == 0


def test_models_that_fully_shard_wrote(accel, torch_checkpoints, tmp_path):
    torch.save(expected_state("net"), tmp_path / "net.bin")
    assert found(accel, torch_checkpoints / "net/pytorch_model_fsdp_0", tmp_path / "net.bin", code=0)["same"]
    result = found(accel, torch_checkpoints / "net_bf16/pytorch_model_fsdp_0", tmp_path / "net.bin", code=3)
    assert {entry["dtype_a"] for entry in result["tensors"]} == {"bfloat16"}
    accel("diff", torch_checkpoints / "net/optimizer_0", torch_checkpoints / "net/optimizer_0")
    result = found(accel, torch_checkpoints / "net/optimizer_0", torch_checkpoints / "net_bf16/optimizer_0", code=3)
    assert result["compared_objects"] > 0 and not result["only_in_a"] and not result["only_in_b"]


def test_a_merged_file_with_its_ties(accel, torch_checkpoints, tmp_path):
    accel("merge-weights", torch_checkpoints / "tied", tmp_path / "out", "--drop-equal")
    result = found(accel, torch_checkpoints / "tied", tmp_path / "out/model.safetensors", code=0)
    assert result["compared_tensors"] == len(expected_state("tied"))


NARROW = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", [*NARROW, torch.float16, torch.bfloat16], ids=str)
def test_every_value_of_a_type_is_what_torch_says(accel, tmp_path, dtype):
    if dtype.itemsize == 1:
        values = torch.arange(256).to(torch.uint8).view(dtype)
    else:
        values = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    a, b = files(tmp_path, {"x": values}, {"x": values.float()})
    assert found(accel, "--ignore-dtype", a, b, code=0)["compared_tensors"] == 1
    result = found(accel, b, a, code=3)
    assert result["tensors"][0]["different"] == 0
    changed = values.float()
    changed[5] += changed[5]  # Element 5 is not NaN in any of the types.
    a, b = files(tmp_path, {"x": values}, {"x": changed})
    assert found(accel, "--ignore-dtype", a, b, code=3)["tensors"][0]["first"] == [5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tolerance", [(0.0, 0.25), (0.1, 0.0), (1e-3, 1e-2), (0.0, 0.0)], ids=str)
def test_tolerance_as_torch_isclose(accel, tmp_path, dtype, tolerance):
    rtol, atol = tolerance
    a = tensor_of(1, (40, 50), dtype)
    noise = tensor_of(2, (40, 50), torch.float64) * torch.logspace(-6, 0, 50, dtype=torch.float64)
    b = (a.to(torch.complex128 if dtype.is_complex else torch.float64) + noise).to(dtype)
    if dtype.is_floating_point:
        special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.0], dtype=dtype)
        a[:5, 7], b[:5, 7] = special, special
        a[:5, 8], b[:5, 8] = special, special.roll(1)
    wide = torch.complex128 if dtype.is_complex else torch.int64 if dtype == torch.int64 else torch.float64
    close = torch.isclose(a.to(wide), b.to(wide), rtol=rtol, atol=atol, equal_nan=True)
    path_a, path_b = files(tmp_path, {"x": a}, {"x": b})
    result = found(accel, "--rtol", rtol, "--atol", atol, path_a, path_b, code=0 if close.all() else 3)
    if close.all():
        return
    entry = result["tensors"][0]
    assert entry["different"] == int((~close).sum())
    assert entry["first"] == (~close).nonzero()[0].tolist()
    distance = (a.to(wide) - b.to(wide)).abs()[~close].to(torch.float64)
    largest = float("nan") if distance.isnan().any() else distance.max().item()
    assert float(entry["largest"]) == pytest.approx(largest, nan_ok=True, rel=1e-12)


MEASURED = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64]


@pytest.mark.parametrize("dtype", MEASURED, ids=str)
def test_measures_are_those_of_numpy(accel, tmp_path, dtype):
    """Of a tensor that several threads compare in parts, and whose elements differ in places alone."""
    shape = (3, 5_000_000) if dtype == torch.float32 else (3, 700)
    a, b = tensor_of(1, shape, dtype), tensor_of(1, shape, dtype)
    b[1] = tensor_of(2, shape, dtype)[1]
    if not dtype.is_floating_point:
        b[b == 0] = 1
        a[0] = b[0]
    path_a, path_b = files(tmp_path, {"x": a}, {"x": b})
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x, y = a.to(wide).numpy(), b.to(wide).numpy()
    distance = numpy.abs(x - y)
    (entry,) = found(accel, path_a, path_b, code=3)["tensors"]
    # The sum of n numbers of float64 in another order differs by n roundings at most.
    assert entry["rms"] == pytest.approx(numpy.sqrt(numpy.mean(distance**2)), rel=distance.size * 2.0**-53)
    assert entry["largest"] == pytest.approx(distance.max(), rel=1e-15)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        relative = numpy.where(distance == 0, 0, distance / numpy.abs(y))
    assert float(entry["largest_relative"]) == pytest.approx(relative.max(), rel=1e-15)
    one, four = (found(accel, "--threads", n, path_a, path_b, code=3)["tensors"] for n in (1, 4))
    assert one == four
    loose = found(accel, "--atol", distance.max() / 2, path_a, path_b, code=3)["tensors"][0]
    assert loose["rms"] == entry["rms"] and loose["different"] < entry["different"]


def test_the_largest_difference_comes_first(accel, tmp_path):
    names = {"a": 0.0, "b": 1e-3, "c": 8.0, "d": float("nan"), "e": -2.0, "f": float("inf"), "g": 1e-3}
    zeros = {name: torch.zeros(4) for name in names}
    other = {name: torch.tensor([0, value, 0, 0]) for name, value in names.items()}
    zeros["shape"], other["shape"] = torch.zeros(2), torch.zeros(3)
    zeros["bytes"], other["bytes"] = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    path_a, path_b = files(tmp_path, zeros, other)
    result = found(accel, path_a, path_b, code=3)
    assert [entry["name"] for entry in result["tensors"]] == ["shape", "d", "f", "c", "e", "b", "g", "bytes"]
    text = accel("diff", path_a, path_b, "--max-findings", 4, code=3).stdout.splitlines()
    assert [line.split(" differs")[0] for line in text[1:4]] == ["values: d", "values: f", "values: c"]
    assert text[3] == "values: c differs in 1 of 4 elements, at most by 8 (relative 1), rms 4, first at [1]"


def test_memory_does_not_grow_with_the_tensors(accel_path, tmp_path):
    def peak_kb(rows):
        paths = []
        for name in ("a", "b"):
            path = tmp_path / f"{name}{rows}.safetensors"
            safetensors.torch.save_file({"x": torch.zeros(rows, 1 << 18)}, path)
            paths.append(path)
        process = subprocess.Popen([accel_path, "--quiet", "diff", *paths], stdout=subprocess.DEVNULL)
        peak = 0
        # getrusage() also counts the child's memory before exec, which is Python's, so this reads /proc.
        while process.poll() is None:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            name = status.split("\n", 1)[0].split()[-1]
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            if found and name == "accel":
                peak = max(peak, int(found[1]))
        assert process.returncode == 0
        for path in paths:
            path.unlink()
        assert peak > 0
        return peak

    small, large = peak_kb(40), peak_kb(200)
    assert large < 40_000
    assert large - small < 4_000
