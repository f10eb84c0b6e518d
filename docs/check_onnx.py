#!/usr/bin/env python3
"""Compares an ONNX model of `phalanx export` with the outputs that the program computed itself.

    phalanx export RUN --out model.onnx --check check.safetensors
    python3 docs/check_onnx.py model.onnx check.safetensors

Needs `pip install onnxruntime numpy`, and the package onnx for the check of the file's structure, where it is installed.
"""
import json
import struct
import sys

import numpy as np
import onnxruntime


def read_safetensors(path):
    """Returns the f32 arrays of a safetensors file by name, and its metadata."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, info in header.items():
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], "<f4").reshape(info["shape"])
    return arrays, metadata


def check_structure(path):
    """Runs the checker of the package onnx, where it is installed."""
    try:
        import onnx
    except ImportError:
        return "not checked (pip install onnx)"
    onnx.checker.check_model(path, full_check=True)
    return "sound"


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: check_onnx.py MODEL.onnx CHECK.safetensors [TOLERANCE]")
    model, check = sys.argv[1:3]
    tolerance = float(sys.argv[3]) if len(sys.argv) == 4 else 1e-4
    print(f"structure: {check_structure(model)}")
    expected, metadata = read_safetensors(check)
    inputs = expected.pop(metadata["input"])
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    # The batch is open: all samples at once, and one alone.
    for samples in (inputs, inputs[:1]):
        for name, found in zip(names, session.run(names, {metadata["input"]: samples})):
            wanted = expected[name][: len(samples)]
            if found.shape != wanted.shape:
                sys.exit(f"{name}: shape {found.shape}, expected {wanted.shape}")
            difference = np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())
            print(f"{name} of {len(samples)} samples: largest relative difference {difference:.2e}")
            worst = max(worst, float(difference))
    for key, value in session.get_modelmeta().custom_metadata_map.items():
        print(f"{key}: {value[:70]}")
    if not worst <= tolerance:
        sys.exit(f"the outputs differ by {worst:.2e}, more than {tolerance:.0e}")


if __name__ == "__main__":
    main()
