"""Writes tokenized documents as a file of safetensors, which docs/formats.md describes ("Tokenized documents")."""

import json
import os
import shutil
import struct

import numpy

FORMAT = "accel.documents"
NAMES = {"uint16": "U16", "int32": "I32", "uint8": "U8", "int64": "I64"}


class Writer:
    """Takes documents one after another into files of `folder`, since a header says how many there are. Nothing of them
    stays in memory."""

    def __init__(self, folder, vocabulary):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        # The order is that of safetensors' own writer: larger elements first.
        self.dtypes = {"lengths": "int64", "input_ids": "uint16" if vocabulary <= 2 ** 16 else "int32", "label_mask": "uint8"}
        self.files = {name: open(folder / name, "wb") for name in self.dtypes}
        self.counts = dict.fromkeys(self.dtypes, 0)
        self.largest = 0
        self.labels = 0  # Labels that count.

    @property
    def documents(self):
        return self.counts["lengths"]

    @property
    def tokens(self):
        return self.counts["input_ids"]

    def add(self, documents):
        """Appends documents, each of at least one token."""
        ids = numpy.concatenate([numpy.asarray(document.tokens, dtype="int64") for document in documents])
        mask = numpy.concatenate([numpy.asarray(document.mask, dtype="uint8") for document in documents])
        lengths = numpy.asarray([len(document.tokens) for document in documents], dtype="int64")
        assert len(ids) == len(mask) and ids.min() >= 0
        self.largest = max(self.largest, int(ids.max()))
        firsts = numpy.cumsum(lengths) - lengths
        self.labels += int(mask.sum()) - int(mask[firsts].sum())
        for name, values in (("lengths", lengths), ("input_ids", ids), ("label_mask", mask)):
            values.astype(self.dtypes[name]).tofile(self.files[name])
            self.counts[name] += len(values)

    def write(self, path, metadata):
        """Writes the file `path`, with `metadata` (texts by name) and what the documents are."""
        header, begin = {"__metadata__": {"format": FORMAT, "version": "1", "largest_token": str(self.largest), **metadata}}, 0
        for name, dtype in self.dtypes.items():
            self.files[name].close()
            end = begin + self.counts[name] * numpy.dtype(dtype).itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": [self.counts[name]], "data_offsets": [begin, end]}
            begin = end
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name in self.dtypes:
                with open(self.folder / name, "rb") as part:
                    shutil.copyfileobj(part, out, 1 << 20)
                os.unlink(self.folder / name)
