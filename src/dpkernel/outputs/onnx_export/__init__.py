"""Export the predictor of a fitted model as an ONNX graph, which runs without dpkernel."""

from dpkernel.outputs.onnx_export.export import to_onnx

__all__ = ["to_onnx"]
