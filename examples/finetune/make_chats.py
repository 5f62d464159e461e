#!/usr/bin/env python3
"""Write chats about examples/data/genesis-exodus.txt: the user begins a sentence, and the assistant ends it.

    python examples/finetune/make_chats.py TRAIN.jsonl HELD_OUT.jsonl

They stand for chats of your own, so that run.sh runs without a network. Every tenth chat is held out.
"""

import json
import pathlib
import sys

TEXT = pathlib.Path(__file__).resolve().parent.parent / "data/genesis-exodus.txt"
BEGINNING = 5  # Words that the user says.


def main() -> None:
    chats = []
    for line in TEXT.read_text().splitlines():
        words = line.split()
        if len(words) > 2 * BEGINNING:
            chats.append([{"role": "user", "content": " ".join(words[:BEGINNING])},
                          {"role": "assistant", "content": " ".join(words[BEGINNING:])}])
    for path, part in zip(sys.argv[1:3], ([chat for i, chat in enumerate(chats) if i % 10], chats[::10]), strict=True):
        pathlib.Path(path).write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in part))
        print(f"{path}: {len(part)} chats")


if __name__ == "__main__":
    main()
