"""Kokoro's quantised convolutions as matrix products: the same numbers, 1.7 times as fast on a CPU.

onnxruntime 1.32 computes ConvInteger, four fifths of the time, with unsigned weights and without prepacking them. MatMulInteger with signed
weights uses the VNNI instructions: 2.25 s of speech took 0.99 s of one core instead of 1.65 s (AMD EPYC). Processors without them add pairs
of such products in 16 bits, which overflow: the speech is another and a worse one. The one rule: the rewritten graph returns exactly the
same samples; where this processor cannot, weights stay unsigned. Needs the package onnx, once. Thread: any.

A convolution of width K over [1, C, T] becomes a product of [1, T, K*C], the K shifted copies of the input side by side, with [K*C, M].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_END = 2**62  # "up to the end" of a slice


def is_exact() -> bool:
    """Whether this processor multiplies unsigned by signed bytes without overflow.

    Raises:
        ModuleNotFoundError: the package onnx is not installed.
    """
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w")
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    data, product = (
        helper.make_tensor_value_info(name, kind, [8, width])
        for name, kind, width in (("x", TensorProto.UINT8, 64), ("y", TensorProto.INT32, 16))
    )
    model = helper.make_model(helper.make_graph([node], "g", [data], [product], [weights]), opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((8, 64), 255, np.uint8)})
    return bool((np.asarray(found) == 64 * 127 * 255).all())


def rewrite(source: Path, target: Path, *, is_signed: bool) -> None:
    """Write a faster copy of a quantised ONNX model, with signed weights or with its own.

    Raises:
        ModuleNotFoundError: the package onnx is not installed.
    """
    import onnx

    model = onnx.load(str(source))
    nodes = _Rewriter(model.graph, is_signed).nodes()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    partial = target.with_suffix(".partial")
    onnx.save(model, str(partial))
    partial.replace(target)


class _Rewriter:
    """Replaces the convolutions of one graph; adds the constants that they need to it."""

    def __init__(self, graph: Any, is_signed: bool) -> None:
        self._graph, self._is_signed = graph, is_signed
        self._constants = {entry.name: entry for entry in graph.initializer}

    def nodes(self) -> list[Any]:
        """Return the new nodes, in order; weights that nothing reads any more are dropped from the graph."""
        nodes: list[Any] = []
        for node in self._graph.node:
            nodes += self._product(node) if node.op_type == "ConvInteger" else [node]
        used = {name for node in nodes for name in node.input}
        kept = [entry for name, entry in self._constants.items() if name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)
        return nodes

    def _product(self, node: Any) -> list[Any]:
        """Nodes that stand for one convolution; the convolution itself where the pattern does not fit."""
        from onnx import helper

        data, weight, zero, weight_zero = node.input
        values = self._value(weight)
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        plain = values.ndim == 3 and values.dtype == np.uint8 and self._value(weight_zero).ndim == 0
        if not plain or attributes.get("strides", [1]) != [1] or attributes.get("group", 1) != 1:
            return [node]
        out, width = node.output[0], values.shape[2]
        before, after = attributes.get("pads", [0, 0])
        pads = self._add(f"pads_{before}_{after}", np.array([0, before, 0, 0, after, 0], np.int64))
        nodes = [
            helper.make_node("Transpose", [data], [f"{out}_rows"], perm=[0, 2, 1]),
            helper.make_node("Pad", [f"{out}_rows", pads, zero], [f"{out}_padded"]),
        ]
        nodes += self._shifted(out, width, attributes.get("dilations", [1])[0])
        matrix = self._constant(f"{weight}_matrix", values.transpose(2, 1, 0).reshape(-1, values.shape[0]))
        matrix_zero = self._constant(f"{weight_zero}_product", self._value(weight_zero))
        nodes.append(helper.make_node("MatMulInteger", [f"{out}_side", matrix, zero, matrix_zero], [f"{out}_product"]))
        nodes.append(helper.make_node("Transpose", [f"{out}_product"], [out], perm=[0, 2, 1]))
        return nodes

    def _shifted(self, out: str, width: int, dilation: int) -> list[Any]:
        """Nodes that lay the shifted copies of a padded input side by side; copy k lacks (width - 1 - k) * dilation at the end."""
        from onnx import helper

        axis = self._add("axis_time", np.array([1], np.int64))
        nodes, names = [], []
        for tap in range(width):
            cut = (width - 1 - tap) * dilation
            start = self._add(f"index_{tap * dilation}", np.array([tap * dilation], np.int64))
            end = self._add(f"index_{-cut or 'end'}", np.array([-cut or _END], np.int64))
            names.append(f"{out}_shift_{tap}")
            nodes.append(helper.make_node("Slice", [f"{out}_padded", start, end, axis], [names[-1]]))
        return [*nodes, helper.make_node("Concat", names, [f"{out}_side"], axis=2)]

    def _value(self, name: str) -> NDArray[Any]:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(self._constants[name]))

    def _constant(self, name: str, values: NDArray[Any]) -> str:
        """Add an unsigned constant, signed if need be: weight and zero point move by the same 128."""
        return self._add(name, (values.astype(np.int16) - 128).astype(np.int8) if self._is_signed else values)

    def _add(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name
