"""The rewritten convolutions return the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from gateway.training import graph

onnx = pytest.importorskip("onnx")


def make_model(path: Path, *, width: int, dilation: int, stride: int) -> None:
    """A quantised convolution of 6 channels to 5."""
    helper = onnx.helper
    weights = np.random.default_rng(0).integers(0, 256, (5, 6, width), np.uint8)
    span = dilation * (width - 1)
    node = helper.make_node(
        "ConvInteger", ["x", "w", "xz", "wz"], ["y"], dilations=[dilation], strides=[stride], pads=[span // 2, span - span // 2], group=1
    )
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in (("w", weights), ("wz", np.array(131, np.uint8)))]
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 6, None]),
        helper.make_tensor_value_info("xz", onnx.TensorProto.UINT8, []),
    ]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [1, 5, None])]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs, constants), opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.save(model, str(path))


def answer(path: Path) -> np.ndarray:
    data = np.random.default_rng(1).integers(0, 256, (1, 6, 50), np.uint8)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": data, "xz": np.array(117, np.uint8)})[0])


@pytest.mark.parametrize("is_signed", [False, pytest.param(True, marks=pytest.mark.skipif("not graph.is_exact()"))])
@pytest.mark.parametrize(("width", "dilation", "stride"), [(1, 1, 1), (3, 1, 1), (7, 3, 1), (11, 5, 1), (3, 1, 2)])
def test_the_answer_is_exactly_the_same(tmp_path: Path, width: int, dilation: int, stride: int, is_signed: bool) -> None:
    make_model(tmp_path / "slow.onnx", width=width, dilation=dilation, stride=stride)
    graph.rewrite(tmp_path / "slow.onnx", tmp_path / "fast.onnx", is_signed=is_signed)
    np.testing.assert_array_equal(answer(tmp_path / "fast.onnx"), answer(tmp_path / "slow.onnx"))
    kinds = [node.op_type for node in onnx.load(str(tmp_path / "fast.onnx")).graph.node]
    assert ("MatMulInteger" in kinds) == (stride == 1)
    assert ("ConvInteger" in kinds) == (stride != 1)
