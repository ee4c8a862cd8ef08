"""What leaves the machine: model files, ONNX, reports, the demonstration."""
