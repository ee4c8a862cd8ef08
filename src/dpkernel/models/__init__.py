"""Public functions of parameters, never of data: kernels, feature maps, losses."""
