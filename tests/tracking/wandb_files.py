"""What wandb wrote into the directory of a run."""

import json
import struct

from wandb.proto.wandb_internal_pb2 import Record


def records(run_dir):
    """The records of a directory's only wandb run, from the file that ``wandb sync`` uploads.

    The file is a LevelDB log behind a header of 7 bytes: blocks of 32 KiB with chunks of a checksum, a length, a type
    (1 whole, 2 first, 3 middle, 4 last) and data. A block's tail too short for a chunk header is zero-padded.
    """
    [path] = run_dir.glob("wandb/offline-run-*/*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    parsed = []
    parts, position = b"", 7
    while position < len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            parsed.append(Record.FromString(parts))
            parts = b""
    return parsed


def only(all_records, kind):
    """The records of a kind."""
    return [getattr(record, kind) for record in all_records if record.WhichOneof("record_type") == kind]


def config_of(run):
    """The configuration in the record of a run."""
    return {item.key: json.loads(item.value_json) for item in run.config.update}
