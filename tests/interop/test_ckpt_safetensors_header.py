"""`accel verify` says ok to a safetensors file where safetensors reads it, apart from what REFUSED says."""

import json
import struct

import pytest
import safetensors

A = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
PLAIN = "{" + A + "}"

# Files that the official library reads, and why accel calls them broken.
REFUSED = {
    "space before": "the format says that the header begins with '{'",
    "a name twice": "readers differ in which of the two tensors they give",
    "a key of the metadata twice": "readers differ in which of the two values they give",
    "an entry as an array": "the format says that an entry is an object",
    "a dimension of 2^63": "torch has no tensor of that shape",
}


def tensor(dtype, shape, end, extra=""):
    return '{"a":{"dtype":"%s","shape":%s,"data_offsets":[0,%d]%s}}' % (dtype, shape, end, extra)


def nested(depth):
    return tensor("F32", "[2]", 8, ',"x":' + "[" * depth + "]" * depth)


# The header of each file, and the bytes behind it.
FILES = {
    "plain": (PLAIN, 8),
    "spaces behind": (PLAIN + "  \n\t\r", 8),
    "space before": (" " + PLAIN, 8),
    "a byte order mark": (b"\xef\xbb\xbf" + PLAIN.encode(), 8),
    "a NUL behind": (PLAIN + "\0", 8),
    "anything behind a NUL": (PLAIN + "\0anything", 8),
    "a NUL before": ("\0" + PLAIN, 8),
    "a NUL in a name": (PLAIN.replace('"a"', '"a\0b"'), 8),
    "an escaped NUL in a name": (PLAIN.replace('"a"', '"a\\u0000b"'), 8),
    "garbage behind": (PLAIN + "x", 8),
    "two documents": (PLAIN + PLAIN, 8),
    "a vertical tab behind": (PLAIN + "\v", 8),
    "a comment": (PLAIN + "/* x */", 8),
    "a comma too many": ("{" + A + ",}", 8),
    "nothing": ("", 0),
    "no tensor": ("{}", 0),
    "no tensor, but bytes": ("{}", 8),
    "one byte more": (PLAIN, 9),
    "many bytes more": (PLAIN, 5000),
    "one byte less": (PLAIN, 7),
    "a name twice": ("{" + A + "," + A + "}", 8),
    "a key of an entry twice": (PLAIN.replace('"shape"', '"dtype":"F32","shape"'), 8),
    "the metadata twice": ('{"__metadata__":{},"__metadata__":{},' + A + "}", 8),
    "a key of the metadata twice": ('{"__metadata__":{"x":"1","x":"2"},' + A + "}", 8),
    "metadata": ("{" + A + ',"__metadata__":{"x":"1"}}', 8),
    "metadata that is null": ('{"__metadata__":null,' + A + "}", 8),
    "metadata that is a list": ('{"__metadata__":[],' + A + "}", 8),
    "metadata with a number": ('{"__metadata__":{"x":1},' + A + "}", 8),
    "an unknown key": (tensor("F32", "[2]", 8, ',"x":1'), 8),
    "a number beyond float64": (tensor("F32", "[2]", 8, ',"x":1e999'), 8),
    "NaN": (tensor("F32", "[2]", 8, ',"x":NaN'), 8),
    "nested 100 deep": (nested(100), 8),
    "nested 124 deep": (nested(124), 8),
    "nested 130 deep": (nested(130), 8),
    "an entry as an array": ('{"a":["F32",[2],[0,8]]}', 8),
    "an entry that is null": ('{"a":null}', 0),
    "a dimension with a point": (tensor("F32", "[2.0]", 8), 8),
    "a dimension with an exponent": (tensor("F32", "[2e0]", 8), 8),
    "a dimension with a zero before": (tensor("F32", "[02]", 8), 8),
    "a dimension of -0": (tensor("F32", "[-0]", 0), 0),
    "a negative dimension": (tensor("F32", "[-2]", 8), 8),
    "a dimension of 2^63": (tensor("F32", "[0,9223372036854775808]", 0), 0),
    "a dimension of 2^64": (tensor("F32", "[0,18446744073709551616]", 0), 0),
    "zeros behind an overflow": (tensor("F32", "[4294967296,4294967296,0]", 0), 0),
    "zeros before an overflow": (tensor("F32", "[0,4294967296,4294967296]", 0), 0),
    "no dimension": (tensor("F32", "[]", 4), 4),
    "three offsets": (PLAIN.replace("[0,8]", "[0,8,8]"), 8),
    "a hole": (PLAIN.replace("[2]", "[1]").replace("[0,8]", "[4,8]"), 8),
    "an overlap": ("{" + A + ',"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', 8),
    "a tensor that is not aligned": ('{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}', 5),
    "an empty tensor within another": ("{" + A + ',"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}', 8),
    "an empty tensor at the end": ("{" + A + ',"b":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}', 8),
    "a name that is not UTF-8": (PLAIN.encode().replace(b'"a"', b'"\xff"'), 8),
    "half of a surrogate pair": (PLAIN.replace('"a"', '"\\ud800"'), 8),
    "a surrogate pair": (PLAIN.replace('"a"', '"\\ud83d\\ude00"'), 8),
    "a control character": (PLAIN.replace('"a"', '"a\nb"'), 8),
    "an empty name": (PLAIN.replace('"a"', '""'), 8),
    "an unknown dtype": (tensor("F99", "[2]", 8), 8),
    "a dtype in lower case": (tensor("f32", "[2]", 8), 8),
    "F4": (tensor("F4", "[2,8]", 8), 8),
    "F4 whose rows share a byte": (tensor("F4", "[2,3]", 3), 3),
    "F4 with half a byte": (tensor("F4", "[15]", 8), 8),
    "F4 without dimension": (tensor("F4", "[]", 0), 0),
    "F6_E2M3": (tensor("F6_E2M3", "[8]", 6), 6),
    "F6_E3M2": (tensor("F6_E3M2", "[2,2]", 3), 3),
    "F6_E3M2 with half a byte": (tensor("F6_E3M2", "[3]", 3), 3),
    "C128": (tensor("C128", "[1]", 16), 16),
    **{dtype: (tensor(dtype, "[2]", 2 * size), 2 * size) for dtype, size in {
        "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2,
        "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8}.items()},
}


def reads(path):
    try:
        with safetensors.safe_open(path, "pt") as opened:
            return opened.keys() is not None
    except Exception:  # SafetensorError, and what the bindings make of others.
        return False


def test_verify_agrees_with_safetensors(accel, tmp_path):
    expected = {}
    for i, (name, (header, length)) in enumerate(FILES.items()):
        header = header.encode() if isinstance(header, str) else header
        path = tmp_path / f"{i:03}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(length))
        expected[str(path)] = (name, reads(path))
    for name, stated in (("a header longer than the file", 10_000), ("a header beyond the limit", 1 << 40)):
        path = tmp_path / f"{stated}.safetensors"
        path.write_bytes(struct.pack("<Q", stated) + PLAIN.encode() + bytes(8))
        expected[str(path)] = (name, reads(path))
    result = json.loads(accel("--json", "verify", tmp_path, code=3).stdout)
    found = {c["path"]: c["ok"] for c in result["checkpoints"] if c["kind"] == "safetensors"}
    assert found.keys() == expected.keys()
    differ = {name for path, (name, ok) in expected.items() if found[path] != ok}
    assert differ == REFUSED.keys()
    assert all(not found[path] for path, (name, _) in expected.items() if name in REFUSED), "accel is never laxer"
    assert sum(ok for _, ok in expected.values()) > 30


@pytest.mark.parametrize("text", [b"%s\0", b"%s\0garbage", b"\xef\xbb\xbf%s", b"%s{}"])
def test_an_index_is_read_as_python_reads_it(accel, tmp_path, text):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00001.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    plain = b'{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00001.safetensors"}}'
    index.write_bytes(plain)
    accel("verify", tmp_path)
    index.write_bytes(text.replace(b"%s", plain))
    with pytest.raises(json.JSONDecodeError):
        json.loads(index.read_text())
    assert "broken: model.safetensors.index.json" in accel("verify", tmp_path, code=3).stdout
    accel("inspect", tmp_path, code=5)


def test_bytes_too_many_are_not_called_a_truncation(accel, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(PLAIN)) + PLAIN.encode() + bytes(20))
    said = accel("inspect", path, code=5).stderr
    assert "the tensors take 8 bytes, the file has 20; the last 12 belong to no tensor" in said
    assert "truncated" not in said
