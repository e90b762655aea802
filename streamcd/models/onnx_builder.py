"""A graph of ONNX in the making: inputs, constants, nodes, a loop, outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._version import __version__
from ..core.errors import UsageError

RUNTIME = "com.microsoft"
"""Domain of the operators that onnxruntime alone has."""

_OPSET, _FORMAT = 17, 8  # read by runtimes from 2022 on
_OPSET_OF_STRINGS, _FORMAT_OF_STRINGS = 20, 9  # those of 2024
_OPSET_OF_LEARNING = 3


class Graph:
    """A graph being made: values have names that no input has."""

    def __init__(self, inputs: Iterable[str]) -> None:
        try:
            import onnx
        except ImportError:
            raise UsageError(
                "an ONNX file needs the package onnx; install it by: pip install 'streamcd[onnx]'"
            ) from None
        self._onnx, self._taken = onnx, set(inputs)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def _named(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def input(self, name: str, dtype: Any, width: int) -> str:
        if any(known.name == name for known in self._inputs):
            return name
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["rows", width]))
        return name

    def constant(self, values: Any) -> str:
        array = np.asarray(values)
        name = self._named(f"constant_{len(self._constants)}")
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return its value's name."""
        name = self._named(f"value_{len(self._nodes)}")
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], domain=domain, **attributes))
        return name

    def to_double(self, value: str) -> str:
        return self.add("Cast", value, to=self._onnx.TensorProto.DOUBLE)

    def column(self, value: str) -> str:
        """Make a vector of a matrix of one column."""
        return self.add("Squeeze", value, self.constant(np.array([1])))

    def or_one(self, norm: str) -> str:
        """Put 1 in place of norms that are 0, to divide by them."""
        zero, one = self.constant(np.float64(0.0)), self.constant(np.float64(1.0))
        return self.add("Where", self.add("Greater", norm, zero), norm, one)

    def repeat(self, value: str, body: Callable[[str], tuple[str, str]]) -> str:
        """Add a loop: `body` adds the nodes that make of a matrix of strings the next one, and tell if it goes on."""
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        outer, self._nodes = self._nodes, []
        turn, condition, carried = (self._named(name) for name in ("turn", "condition", "carried"))
        following, goes_on = body(carried)
        takes = [(turn, kinds.INT64, []), (condition, kinds.BOOL, []), (carried, kinds.STRING, [None, None])]
        gives = [(goes_on, kinds.BOOL, []), (following, kinds.STRING, [None, None])]
        ends = ([helper.make_tensor_value_info(*end) for end in both] for both in (takes, gives))
        inner = helper.make_graph(self._nodes, self._named("body"), *ends)
        self._nodes = outer
        return self.add("Loop", "", self.constant(np.array(True)), value, body=inner)

    def output(self, name: str, value: str, dtype: Any, width: int | None) -> None:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        shape: list[str | int | None] = ["rows"] if width is None else ["rows", width]
        name = self._named(name)
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))

    def serialised(self, about: str) -> bytes:
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "streamcd", self._inputs, self._outputs, self._constants, doc_string=about
        )
        cuts_text = any(node.domain == RUNTIME for node in self._nodes)
        versions = {"": _OPSET_OF_STRINGS if cuts_text else _OPSET, "ai.onnx.ml": _OPSET_OF_LEARNING}
        opsets = [
            helper.make_opsetid(*version)
            for version in (versions | {RUNTIME: 1} if cuts_text else versions).items()
        ]
        made = helper.make_model(
            graph, opset_imports=opsets, producer_name="streamcd", producer_version=__version__
        )
        made.ir_version = _FORMAT_OF_STRINGS if cuts_text else _FORMAT
        self._onnx.checker.check_model(made)
        content: bytes = made.SerializeToString()
        return content
