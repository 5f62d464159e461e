"""Writes the seeds of the fuzzers into corpus/: small files as torch, Python, safetensors and pyarrow write them.

    tools/dev python tests/fuzz/make_corpus.py

pyarrow lies where ACCEL_DATASETS_PACKAGES says (make_datasets in tools/dev).

The folders also hold inputs that fuzzing found, under descriptive names. The script does not change them.
"""

import collections
import io
import os
import pathlib
import pickle
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib

import numpy  # noqa: F401  torch warns without it.
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

sys.path.append(os.environ.get("ACCEL_DATASETS_PACKAGES", ""))
import pyarrow  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def put(target: str, name: str, data: bytes) -> None:
    (HERE / target).mkdir(parents=True, exist_ok=True)
    (HERE / target / name).write_bytes(data)


def saved(value, legacy: bool = False) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def data_pickle(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith("data.pkl")]
        return opened.read(name)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Branches(torch.nn.Module):
    """Reads parameters of other modules in branches and loops."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Small(), Small()])
        self.gain = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor, flag: bool = True) -> torch.Tensor:
        weight = self.layers[0].inner.weight
        if flag:
            x = x + self.layers[1].inner.bias
        for _ in range(2):
            x = x @ weight * self.gain + 1e-5
        return x + len("self.layers 'text'")


class Wrapped(torch.Tensor):
    """A tensor of a class around another one, as torchao's float8 weights are."""

    @staticmethod
    def __new__(cls, values, **_):
        return torch.Tensor._make_wrapper_subclass(cls, values.size(), dtype=values.dtype, device="cpu")

    def __init__(self, values, **others):
        self._tensor = values
        self.__dict__.update(others)

    @classmethod
    def __torch_dispatch__(cls, function, _, args, kwargs=None):
        return function(*[arg._tensor if isinstance(arg, Wrapped) else arg for arg in args], **(kwargs or {}))


STATES = {
    "tensor": torch.zeros(2, 3),
    "state_dict": Small().state_dict(),
    "nested": {"step": 7, "lr": 0.5, "betas": (0.9, 0.95), "w": [torch.zeros(2), {"x": torch.ones(1, dtype=torch.bfloat16)}]},
    "shared": (lambda t: {"a": t, "b": t[1:], "c": t.t()})(torch.zeros(3, 3)),
    "fp8": torch.zeros(4, dtype=torch.float8_e4m3fn),
    "parameter": torch.nn.Parameter(torch.zeros(2)),
    "scalar": torch.tensor(1.5),
    "wrapped": {"one": Wrapped(torch.zeros(2, 3)), "two": Wrapped(torch.zeros(2), scale=torch.ones(1)), "in_another": Wrapped(Wrapped(torch.zeros(2))),
                "float8": Wrapped(torch.zeros(2), _linear_mm_config=(1,), _dtype=torch.float8_e4m3fn, _precomputed_scale=torch.tensor(0.5))},
}

VALUES = {
    "scalars": [None, True, False, 0, -1, 255, 65536, 2**31, -(2**40), 2**70, 1.5, float("nan")],
    "text": ["", "a", "ü" * 10, "x" * 300, b"", b"bytes", b"y" * 300, bytearray(b"array")],
    "containers": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, set(), {1, 2}, frozenset({3}), {"a": {"b": [{}]}}],
    "objects": [collections.OrderedDict(a=1), pathlib.PurePosixPath("a/b"), torch.float32, torch.Size((1, 2)), complex(1, 2)],
    "memo": (lambda part: [part, part, {"k": part}, part])(["shared", "parts"]),
}


def metadata_of(state) -> bytes:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        return (pathlib.Path(folder) / ".metadata").read_bytes()


def arrow_tables() -> dict[str, pyarrow.Table]:
    ids = [[5, 6, 7], [8, 9, 10]]
    return {
        "documents": pyarrow.table({
            "input_ids": pyarrow.array([[5, 6, 7], [8], [], [9, 10]], pyarrow.list_(pyarrow.int32())),
            "labels": pyarrow.array([[5, -100, 7], [8], [], [9, 10]], pyarrow.list_(pyarrow.int64())),
            "attention_mask": pyarrow.array([[1, 1, 1], [1], [], [1, 1]], pyarrow.list_(pyarrow.int8())),
            "completion_mask": pyarrow.array([[0, 1, 1], [1], [], [1, 1]], pyarrow.large_list(pyarrow.uint8()))}),
        "rows": pyarrow.table({
            "input_ids": pyarrow.array(ids, pyarrow.list_(pyarrow.int32(), 3)), "labels": pyarrow.array(ids, pyarrow.large_list(pyarrow.int64())),
            "pixel_values": pyarrow.array([[ids, ids]] * 2, pyarrow.list_(pyarrow.list_(pyarrow.list_(pyarrow.uint8())))), "label": [0, 1]}),
        "others": pyarrow.table({
            "text": ["a", "b"], "views": pyarrow.array(["a text of more than twelve bytes"] * 2, pyarrow.string_view()),
            "struct": [{"a": 1, "b": [True]}] * 2, "dictionary": pyarrow.array(["a", "b"]).dictionary_encode(),
            "union": pyarrow.UnionArray.from_sparse(pyarrow.array([0, 0], "int8"), [pyarrow.array([1, 2])]), "nulls": [None, 1.5]}),
    }


def main() -> None:
    for name, table in arrow_tables().items():
        for form, writer in (("stream", pyarrow.ipc.new_stream), ("file", pyarrow.ipc.new_file)):
            out = io.BytesIO()
            with writer(out, table.schema) as written:
                written.write_table(table, max_chunksize=1 if name == "rows" else None)
            put("arrow", f"{name}_{form}", out.getvalue())
    for name, state in STATES.items():
        archive = saved(state)
        put("zip", f"torch_{name}", archive)
        put("zip", f"legacy_{name}", saved(state, legacy=True))
        put("pickle", f"torch_{name}", data_pickle(archive))
        put("torch", f"torch_{name}", b"\x80" + data_pickle(archive))
    for name, value in VALUES.items():
        for protocol in (2, 3, 4, 5):
            put("pickle", f"{name}_{protocol}", pickle.dumps(value, protocol))

    script = io.BytesIO()
    torch.jit.save(torch.jit.script(Small()), script)
    put("torch", "torchscript", b"\x81" + data_pickle(script.getvalue()))
    put("zip", "torchscript", script.getvalue())
    branches = io.BytesIO()
    torch.jit.save(torch.jit.script(Branches()), branches)
    with zipfile.ZipFile(branches) as archive:
        for record in sorted(name for name in archive.namelist() if name.endswith(".py")):
            put("script", pathlib.PurePath(record).stem, archive.read(record))
    put("script", "brackets", b"class A(Module):\n  def f(self):\n    return " + b"(" * 100 + b"self.a" + b")" * 100 + b".b\n")
    deflated = io.BytesIO()
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", pickle.dumps({"a": 1}, 2))
        archive.writestr("m/code/a.py", "pass\n" * 50)
    put("zip", "deflated", deflated.getvalue())

    for name, state in {
        "tensors": {"model": {"w": torch.zeros(2, 3), "b": torch.zeros(0)}},
        "objects": {"optimizer": {"param_groups": [{"lr": 0.1, "params": ["w"]}]}, "step": torch.tensor(3.0)},
    }.items():
        whole = metadata_of(state)
        put("metadata", name, whole)
        loaded = pickle.loads(whole)  # noqa: S301  This script has written the data.
        for protocol in (2, 5):
            put("metadata", f"{name}_{protocol}", pickle.dumps(loaded, protocol))
    loaded.storage_meta = None
    put("metadata", "objects_without_storage_meta", pickle.dumps(loaded))

    for name, body in {
        "object": struct.pack("<IIIQQH", 0, 0, 1, 128, 700, 1) + b"\0\2\0\0\0lr\0",
        "scalar": struct.pack("<IIIQQH", 1, 0, 1, 128, 700, 1) + b"\0\1\0\0\0s\1\4bool\0",
        "tensor": struct.pack("<IIIQQH", 3, 1, 4, 1088, 2000, 2) + b"\0\5\0\0\0model\1" + struct.pack("<q", -2)
        + b"\1\7float32\2" + struct.pack("<qqqqqq", 5, 1, 4, 7, 2, 3),
        "bfloat16": struct.pack("<IIIQQH", 0, 0, 1, 128, 9, 1) + b"\0\1\0\0\0x\1\x08bfloat16\1" + struct.pack("<qqq", 5, 0, 5),
    }.items():
        put("item_record", name, b"ACCELREC" + struct.pack("<IQI", 1, 24 + len(body), zlib.crc32(body)) + body)

    for name, state in {
        "one": {"w": torch.zeros(2, 3)},
        "several": {"w": torch.zeros(2), "b": torch.zeros(3, dtype=torch.bfloat16), "e": torch.zeros(0, 4), "s": torch.tensor(1)},
        "none": {},
    }.items():
        data = safetensors.torch.save(state, metadata={"format": "pt"})
        (length,) = struct.unpack("<Q", data[:8])
        put("safetensors", name, struct.pack("<Q", len(data) - 8 - length) + data[8 : 8 + length])
    put("safetensors", "without_metadata", struct.pack("<Q", 1) + b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}  ')


if __name__ == "__main__":
    sys.exit(main())
