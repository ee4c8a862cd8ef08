"""Everything that leaves the machine: model files, ONNX graphs, reports, and the demonstration."""
