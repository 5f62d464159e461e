"""State dicts for the checkpoint zoo. numpy makes the numbers, so the bits are the same under every torch version."""

import numpy
import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip

# Dtypes for which the safetensors format has no name.
NOT_IN_SAFETENSORS = {torch.complex32, torch.complex128}


def short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensor_of(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns finite numbers, which are the same on every rank."""
    random = numpy.random.RandomState(seed)
    if dtype.is_complex:
        pair = random.standard_normal((*shape, 2)).astype("float32")
        return torch.view_as_complex(torch.from_numpy(pair)).to(dtype)
    if dtype.is_floating_point:
        return torch.from_numpy(numpy.asarray(random.standard_normal(shape), "float64")).float().to(dtype)
    low, high = {torch.bool: (0, 2), torch.uint8: (0, 256)}.get(dtype, (0, 120))
    return torch.from_numpy(numpy.asarray(random.randint(low, high, shape))).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    """Returns the first difference, or "" if both hold the same names, dtypes, shapes and bits."""
    if found.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        return f"missing: {missing}; not expected: {extra}"
    for name, tensor in expected.items():
        other = found[name]
        if other.dtype != tensor.dtype or other.shape != tensor.shape:
            return f"{name}: {other.dtype} {list(other.shape)}, expected {tensor.dtype} {list(tensor.shape)}"
        if bits(other) != bits(tensor):
            return f"{name}: other bits"
    return ""


def odd_sizes() -> dict[str, torch.Tensor]:
    """Returns tensors that can be sharded by rows and by columns. The world size divides few of their sizes."""
    return {
        "embed.weight": tensor_of(1, (6, 40)),
        "uneven.weight": tensor_of(2, (5, 7)),
        "half": tensor_of(3, (9, 16), torch.bfloat16),
        "cube": tensor_of(4, (3, 4, 5), torch.float16),
        "one.row": tensor_of(5, (1, 3)),
        "four": tensor_of(6, (2, 3, 5, 2), torch.float64),
        "large": tensor_of(7, (1031, 257)),
        "counts": tensor_of(8, (7, 6), torch.int64),
    }


def every_dtype() -> dict[str, torch.Tensor]:
    return {f"of.{short_name(dtype)}": tensor_of(20 + i, (3, 5), dtype) for i, dtype in enumerate(DTYPES)}


def odd_layouts() -> dict[str, torch.Tensor]:
    """Returns 0-dim and empty tensors, and views that do not match their storage."""
    base = tensor_of(50, (10, 10))
    return {
        "scalar": torch.tensor(1.5),
        "flag": torch.tensor(True),
        "empty": torch.zeros(0, 3),
        "transposed": tensor_of(51, (4, 6)).t(),
        "part.of.more": base[2:5, 3:7],
        "every.second": base.reshape(-1)[::2],
        "permuted": tensor_of(52, (2, 3, 4)).permute(2, 0, 1),
        "expanded": tensor_of(53, (1, 4)).expand(3, 4),
    }


class Net(torch.nn.Module):
    """A small model with odd sizes, a buffer and no tied parameters."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, width)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        self.head = torch.nn.Linear(width, 5, bias=False)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


def net(dtype: torch.dtype = torch.float32, width: int = 6) -> Net:
    model = Net(width)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(tensor_of(100 + i, tuple(parameter.shape)))
    return model.to(dtype)
